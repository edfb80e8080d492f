"""Request bodies as pydantic models: their texts, their options, and the body of each route."""

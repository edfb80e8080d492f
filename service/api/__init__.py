"""The routes, by dialect: request bodies, the call of the engine, answers, the OpenAPI document."""

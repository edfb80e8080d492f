"""The routes by dialect: `native` (text-embeddings-inference), `openai`, `tokenize` and the rest.

A route reads a body as one of the models in `service.api.schemas`, calls the engine through
`service.api.embedding` and writes bytes with `service.api.responses`.
"""

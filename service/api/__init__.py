"""The HTTP routes by dialect: native (text-embeddings-inference), OpenAI, tokenize, operations.

A route reads a body as one of the models in `schemas`, calls the engine through `embedding` and
writes bytes with `responses`. Only `service.app` and `service.server` import this package.
"""

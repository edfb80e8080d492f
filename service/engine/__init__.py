"""The embedding engine: everything between an accepted request and its answer.

It knows nothing of HTTP: `service.engine.engine.Engine` takes texts and gives embeddings, with
admission limits, batching, inference threads, deadlines and an orderly end. `types` has the
protocols that the HTTP layer and the tests' fakes are written against.
"""

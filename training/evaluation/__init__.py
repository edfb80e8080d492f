"""Scores encoders: STS, development data, retrieval, transfer tasks, geometry, latency.

An encoder is any function from texts to embeddings; `encoders` opens a checkpoint, an artifact, a
backbone or a running service as one.
"""

"""Scores encoders: STS, transfer tasks, geometry, latency; tables, figures and the HTML report.

An encoder is any function from texts to embeddings; `encoders` opens a checkpoint, an artifact, a
backbone or a running service as one.
"""

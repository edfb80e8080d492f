"""Trains encoders with an S2Sent selector, scores them, and reproduces the paper's experiments.

A recipe (TOML) and a corpus give a checkpoint, which `evaluation` scores and `model.export` turns
into an artifact. The command line is ``s2sent-train``; nothing here is imported by the service.
"""

"""The graphs that a GPU runs: one for each depth, made from an artifact's, in float16 or float32.

`conversion` is the entry point, which the service runs as a process of its own.
"""

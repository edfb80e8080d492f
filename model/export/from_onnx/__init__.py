"""Artifacts of folders that hold an ONNX graph or a table of static embeddings, without torch.

`conversion` is the entry point, which the service runs as a process of its own.
"""

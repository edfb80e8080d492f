"""Exports to an ONNX artifact: of a checkpoint, of a folder with a graph, of another artifact.

`checkpoint` and `twins` export what torch loads, and `restore` makes a checkpoint of an artifact.
`from_onnx.conversion`, `int8.conversion` and `gpu.conversion` need no torch: the service runs them
as processes of their own. `tracing`, `packed` and `cpu` make the graph of a checkpoint.
"""

# ONNX Runtime must first be imported by this module, which switches its usage reports off.
import s2sent.model.runtime.sessions  # noqa: F401

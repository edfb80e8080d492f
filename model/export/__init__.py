"""Export of a checkpoint to an ONNX artifact, of an artifact to int8, and back to a checkpoint.

`checkpoint`, `requantize` and `restore` are the entry points; the other modules edit ONNX graphs or
compare embeddings. A checkpoint's export needs torch. `requantize` needs onnx alone,
and the service runs it as a process of its own.
"""

# ONNX Runtime must first be imported by this module, which switches its usage reports off.
import s2sent.model.runtime.sessions  # noqa: F401

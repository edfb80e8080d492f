"""Export of a checkpoint to an ONNX artifact, and of an artifact to int8.

`checkpoint` and `requantize` are the two entry points; the other modules edit ONNX graphs or
compare embeddings. This package needs torch, optimum and onnx, which the service does not have.
"""

# ONNX Runtime must first be imported by this module, which switches its usage reports off.
import model.runtime.sessions  # noqa: F401

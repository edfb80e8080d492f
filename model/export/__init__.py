"""From a checkpoint to an ONNX artifact, and from one precision to another."""

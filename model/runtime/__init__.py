"""Running an artifact without torch: tokenizer, ONNX Runtime sessions, encoder.

This is what the service, the evaluation of artifacts and the export's parity check run.
"""

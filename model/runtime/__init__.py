"""The served form, without torch: tokenizer, ONNX Runtime sessions, encoder."""

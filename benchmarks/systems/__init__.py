"""The systems that are compared: how each is started, asked and ended."""

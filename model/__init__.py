"""What the model is: its trained form, its served form, and the files between."""

import os

# ONNX Runtime 1.31 sends a report of its use to its maker, and keeps it in the user's cache folder,
# unless this stands in the environment before it is imported. Nothing of ours reports anything.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

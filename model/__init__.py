"""The model: its torch form, its export to ONNX, the artifact on disk, and its runtime.

`model.artifact` and `model.runtime` are all that the service imports, and never need torch;
`model.network` and `model.export` do. Nothing here imports `service` or `training`.
"""

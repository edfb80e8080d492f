"""The embedding service: an HTTP API around an ONNX encoder. Never imports torch.

`service.app` builds the application and `service.server` runs it; requests go from `service.api`
through `service.http` to `service.engine`. Neither `model` nor `training` imports this package.
"""

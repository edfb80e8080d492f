"""What the service tells its operators of itself: Prometheus metrics and log lines.

`deferred` makes both after the answer. Traces belong to HTTP: `service.http.tracing`.
"""

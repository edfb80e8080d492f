"""HTTP below the routes: connections, bodies, error responses, request records, tracing.

Nothing here knows a route or a body's fields. `service.api`, `service.access`, `service.app` and
`service.server` import this package.
"""

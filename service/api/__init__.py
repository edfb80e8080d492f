"""The HTTP API: what its routes are told and what they answer.

`routes` has the routes and `schemas` their bodies; the modules here are what routes share, from the
call of the engine (`embedding`) to the bytes of an answer (`responses`). Only `service.app`,
`service.server` and `service.pages` import this package.
"""

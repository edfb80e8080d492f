"""The pages for people: the start page, the API reference and the playground.

`static/` has the playground's own files and, under `vendor/`, one library. Only `service.app`
imports this package.
"""

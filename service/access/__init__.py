"""Access control: API keys, the file that holds them, and rate limits per key.

`service.app` adds its middleware around the routes; the command line uses `api_keys` to make keys.
"""

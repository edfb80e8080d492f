"""Several HTTP processes before one engine process: what they send each other, and both ends.

An HTTP process parses, validates and tokenises requests, and writes answers; the engine process has
the queue, the model, the cache and the limits. `frames` is the format on the Unix socket between
them, `board` the memory they share, `client` the HTTP process's engine, `server` the other end.
"""

"""The artifact: a folder with one exported encoder, described and verified by its manifest.

The exporter writes it and the service opens it; opening trusts no byte that it has not hashed.
Only the standard library is imported.
"""

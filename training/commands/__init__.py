"""Commands of ``s2sent-train`` that have a file of their own; `training.__main__` has the others.

Each parses its options and calls one function; it imports that function itself, because the
libraries behind it take seconds to import.
"""

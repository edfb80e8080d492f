"""The commands of ``s2sent-train`` that run experiments; `training.__main__` has the others.

Each parses its options and calls one function; it imports that function itself, because the
libraries behind it take seconds to import.
"""

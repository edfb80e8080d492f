"""Single questions, each with its own command: ``python -m benchmarks.studies.NAME``."""

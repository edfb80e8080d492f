"""HTTP in, vectors out. Never imports torch."""

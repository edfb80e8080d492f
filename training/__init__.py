"""Corpus to checkpoint to numbers."""

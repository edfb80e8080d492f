"""Scores of an encoder: STS, transfer tasks, geometry, latency, and a report."""

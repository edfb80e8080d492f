"""What surrounds scores: statistics over seeds, published scores, use of tests, tables."""

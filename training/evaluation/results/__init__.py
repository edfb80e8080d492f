"""What surrounds scores: statistics over seeds, published scores, openings of tests, tables."""

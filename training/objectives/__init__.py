"""What a run optimises, one module per family of objectives."""

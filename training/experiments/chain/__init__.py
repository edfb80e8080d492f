"""Chains of recipes, one going on from another's checkpoint, run with several seeds."""

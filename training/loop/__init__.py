"""The training loop: the trainer of a recipe, its batches, its callbacks, low-rank updates."""

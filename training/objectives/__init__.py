"""The losses, and in `from_recipe` what each objective of a recipe means for the trainer."""

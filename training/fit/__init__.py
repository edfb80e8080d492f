"""A recipe becomes a checkpoint: encoder and corpus prepared, trained, saved, loaded and scored."""

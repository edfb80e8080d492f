"""Sources of a corpus that are made of other files: picked texts, pairs of edited captions."""

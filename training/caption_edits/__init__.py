"""A corpus of pairs of sentences that differ by an edit, made from captions of pictures."""

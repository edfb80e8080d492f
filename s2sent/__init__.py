"""S2Sent sentence embeddings: `s2sent.model`, `s2sent.service` and `s2sent.training`.

In a clone the three packages are links to the folders of the same names at its top level; a wheel
holds them as folders.
"""

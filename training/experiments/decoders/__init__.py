"""The table of CSE-SFP: heads on a decoder that is frozen, then with low-rank updates."""

"""The artifact folder: its manifest, and how it is read, checked and written."""

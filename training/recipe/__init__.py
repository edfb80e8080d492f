"""The recipe of a training run: one TOML file, read into frozen dataclasses that check it."""

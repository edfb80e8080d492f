"""Encoders that can stop at several depths: their scores and times at each, and across depths."""

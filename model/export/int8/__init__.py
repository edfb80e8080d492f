"""int8 in a graph: matrices stored in it (`storage`) and products made in it (`products`).

`rounding` puts a checkpoint's weights on the same grid, so that torch computes with the same.
"""

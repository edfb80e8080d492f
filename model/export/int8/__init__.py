"""int8 in a graph: matrices stored in it (`storage`) and products made in it (`products`).

`rounding` puts a checkpoint's weights on the same grid, so that torch computes with the same.
`conversion` makes an int8 artifact of a float one; the service runs it as a process of its own.
"""

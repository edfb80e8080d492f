"""The training objectives: one module per family, found by `families`.

The module of a family builds the encoder, the loss and the columns of the data set, so that
`training.fit.train` is the same for every objective.
"""

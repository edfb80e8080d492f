"""The training objectives: the losses, and in `from_recipe` what each objective of a recipe means.

The module of a family builds the encoder, the loss and the columns of the data set, so that
`training.fit.train` is the same for every objective.
"""

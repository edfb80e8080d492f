"""Experiments with a frozen backbone: block states are computed once, and heads train on them.

Pooling commutes with a weighted sum of blocks whose weights are the same for all tokens, so a head
needs the pooled vector of each block and the DCT coefficients that its gate reads, not the tokens.
"""

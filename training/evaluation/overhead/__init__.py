"""Measures what a selector adds to a backbone: parameters, and latency with both run in turns.

Each cell is a batch size, a length and a precision. Its arms share the backbone:

    plain      mean of the last block's tokens; the backbone gives no hidden states
    states     the same, but the backbone gives all hidden states
    selector   the blocks, weighed and pooled as a service does it: pooled first, then weighed
    tokens     the same as in training: every token weighed, then pooled

All arms run once in each round, in rotating order. A round gives the ratio of two arms under the
same conditions; a cell has the median and the quartiles of these ratios, in wall time and, on a
CPU, in processor time, which other programs disturb less. Inputs are random tokens
without padding.
"""

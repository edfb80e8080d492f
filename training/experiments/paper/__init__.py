"""Reproduces the experiments of the S2Sent paper (arXiv 2508.18164) and our controls.

`experiments` says what is compared, `runs` trains and scores it, `tables` and `claims` turn the
result files into Markdown.
"""

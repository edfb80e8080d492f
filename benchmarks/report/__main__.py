"""Writes the page and the plot of a folder again: ``python -m benchmarks.report FOLDER``."""

from benchmarks.report.page import main

main()

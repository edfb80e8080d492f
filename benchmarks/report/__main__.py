"""Writes page, summary and plot of a folder again: ``python -m benchmarks.report FOLDER``."""

import argparse
from pathlib import Path

from benchmarks.report.folder import write_report

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
print(write_report(parser.parse_args().folder))

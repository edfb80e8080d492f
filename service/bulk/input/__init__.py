"""What is embedded: the rows of input files, format by format."""

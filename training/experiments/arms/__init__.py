"""What is compared: one module an experiment, with its arms, its runs and its tables."""

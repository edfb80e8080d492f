"""Twin encoders beside their controls: the runs of each seed, their scores, and the tables."""

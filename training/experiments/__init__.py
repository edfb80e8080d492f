"""Tables as series of runs: each run is trained, scored once, and goes on after a stop.

`arms` says what is compared, and `engine` runs what is missing of it.
"""

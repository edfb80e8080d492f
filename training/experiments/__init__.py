"""Tables and figures as series of runs: each run is trained, scored once, and goes on after a stop.

`paper` has the paper's and our controls; `chain`, `decoders`, `exits` and `twins` ask one question
each.
"""

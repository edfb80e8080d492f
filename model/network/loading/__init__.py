"""Opens folders of checkpoints and backbones: nothing of them is run, and no weight stays random.

`checkpoint` says what a checkpoint may hold, `backbone` loads what stands under its selector or
pooling, `hub` finds the folder of a name.
"""

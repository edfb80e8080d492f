"""`s2sent embed`: whole files of texts to files of embeddings, resumable, on one or many machines.

`runner` reads parts of the `input`, embeds them with one of the `embedders` and commits them one by
one to the `output`. `ray_job` runs it on a Ray cluster.
"""

"""`s2sent embed`: whole files of texts to files of embeddings, resumable, on one or many machines.

`runner` reads parts of the input (`inputs`), embeds them (`local`, or `remote` through a running
service) and commits them one by one (`writers`, `output`). `ray_job` runs it on a Ray cluster.
"""

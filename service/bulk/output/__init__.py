"""Where the embeddings go: a folder of parts, each of which is whole or not there."""

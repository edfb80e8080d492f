"""The encoder in torch: backbone, S2Sent selector and pooling as a sentence-transformers pipeline.

Training builds and trains it; `model.export` turns its checkpoints into artifacts.
"""

"""Inference: the queue of texts, the batches taken from it, and the threads that run them.

Imports nothing of the engine's other half, which admits and tokenises requests.
"""

"""What makes a fused graph fast on a CPU: tokens without padding, and the faster operators.

`packing` takes the padding out of the blocks, `masked_attention` puts ONNX's attention in the place
of ONNX Runtime's, `long_attention` lets long texts attend in little memory.
"""

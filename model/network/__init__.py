"""The trained form, in torch: backbone, S2Sent selector, pooling."""

"""Backbones whose packed form is traced from torch: decoders, and encoders with other attentions.

ONNX Runtime's optimiser knows BERT's attention alone (`model.export.cpu.packing` packs what it
fused). Of the others `families` names the class that runs a backbone's own layers on packed tokens,
one file a family, with attention as one operator of `attention`.
"""

"""A torch encoder as an ONNX graph: by optimum's exporter if it is installed, else by torch's."""

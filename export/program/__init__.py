"""A federation's local round as ONNX graphs, which devices run without torch: exporter and host."""

"""A federation's local round as ONNX graphs, which devices run without torch: exported here, and run by `host`."""

"""ONNX Runtime for the web: files that Gaitway's server serves to phones, beside its own."""

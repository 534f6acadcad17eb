"""From torch to ONNX: export, parity gates, int8; and `export.runtime`, the inference session without torch."""

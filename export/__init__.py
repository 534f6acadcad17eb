"""From torch to ONNX: export, parity gates, int8; and `export.runtime`, the inference session without torch.

From version 1.32 on, ONNX Runtime's Linux wheels send telemetry. A device that promises to send no data must not do
that, so it is switched off here, before any of our modules loads ONNX Runtime.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

"""From torch to ONNX: export, parity gates, int8; and `export.runtime`, the inference session without torch.

ONNX Runtime's wheels for Linux report its use to their makers from 1.32 on. Nothing of a device that promises to send
no data may do so: it is switched off here, before any module of ours loads it.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

"""The server's program: REST to the operator, MQTT to the devices, rounds in SQL, models in blobs.

Nothing of ours is imported here, so that `import aggregator_api` stays light.
"""

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        f"the server needs Python 3.11 or newer, and this is {sys.version.split()[0]}; a device takes 3.10"
    )

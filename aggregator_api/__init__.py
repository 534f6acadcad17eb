"""The server: REST for the operator, MQTT for the devices, rounds in SQL, models in blobs.

Nothing of ours is imported here, so that `import aggregator_api` stays light.
"""

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        f"the server needs Python 3.11 or newer, but this is {sys.version.split()[0]}; only devices can use 3.10"
    )

"""What server and devices share: methods, the local round, the server's round, the wire format.

This file imports nothing, so that the device's supervisor can use `federation.protocol` without loading torch.
"""

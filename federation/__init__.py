"""What both ends of the wire agree on: methods, the local round, the server's round, the wire format.

Nothing is imported here, so that the device's supervisor can use `federation.protocol` without loading torch.
"""

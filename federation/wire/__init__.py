"""Trees of tensors as bounded bytes, what an update must look like, and how an upload travels."""

from federation.wire.safetensors import DTYPES, decode, digest, encode, tensor_bytes

__all__ = ["DTYPES", "decode", "digest", "encode", "tensor_bytes"]

"""The gRPC front end: the Open Inference Protocol with Triton's extensions, and health.

It converts, calls the data or control plane, converts back; it holds no rule of its own. Loads
grpc, so it is imported only where a gRPC server is wanted.
"""

from slacktide.server.grpc.rpc import AccessEntry, AccessLog, Authorize, Denial
from slacktide.server.grpc.server import GrpcServer
from slacktide.server.grpc.settings import GrpcSettings, TlsPem

__all__ = [
    "AccessEntry",
    "AccessLog",
    "Authorize",
    "Denial",
    "GrpcServer",
    "GrpcSettings",
    "TlsPem",
]

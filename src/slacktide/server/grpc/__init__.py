"""The gRPC front end: the Open Inference Protocol with Triton's extensions, and health.

It converts, calls the data or control plane, converts back; it holds no rule of its own. Loads
grpc, so it is imported only where a gRPC server is wanted.
"""

from slacktide.server.grpc.rpc import AccessEntry as AccessEntry
from slacktide.server.grpc.rpc import AccessLog as AccessLog
from slacktide.server.grpc.rpc import Authorize as Authorize
from slacktide.server.grpc.rpc import Denial as Denial
from slacktide.server.grpc.server import GrpcServer as GrpcServer
from slacktide.server.grpc.settings import GrpcSettings as GrpcSettings
from slacktide.server.grpc.settings import TlsPem as TlsPem

"""The gRPC front end: the Open Inference Protocol with Triton's extensions, and health.

It converts, calls the data or control plane, converts back; it holds no rule of its own. Loads
grpc, so it is imported only where a gRPC server is wanted.
"""

from slacktide.frontends.grpc.rpc import AccessEntry as AccessEntry
from slacktide.frontends.grpc.rpc import AccessLog as AccessLog
from slacktide.frontends.grpc.rpc import Authorize as Authorize
from slacktide.frontends.grpc.rpc import Denial as Denial
from slacktide.frontends.grpc.server import GrpcServer as GrpcServer
from slacktide.frontends.grpc.settings import GrpcSettings as GrpcSettings
from slacktide.frontends.grpc.settings import TlsPem as TlsPem

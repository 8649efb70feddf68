"""The gRPC front end: the Open Inference Protocol with Triton's extensions, and health.

It converts, calls the data or control plane, converts back; it holds no rule of its own. Loads
grpc, so it is imported only where a gRPC server is wanted.
"""

from slacktide.frontends.grpc.server import GrpcServer as GrpcServer

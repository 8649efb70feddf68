"""The gRPC front end: the Open Inference Protocol with Triton's extensions, and health.

It converts, calls the data or control plane and converts back. It loads protobuf, so import it only
to run a gRPC server.
"""

from slacktide.frontends.grpc.server import GrpcServer as GrpcServer

"""Protobuf definitions of the gRPC services: .proto files, their compiled form, message classes.

Not a converter: `slacktide.wire.grpc_messages` turns messages into calls. Import message classes
from `slacktide.wire.proto.messages`; nothing is loaded here.
"""

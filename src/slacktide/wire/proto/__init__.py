"""Protobuf definitions of the gRPC services: .proto files, their compiled form, message classes.

`slacktide.wire.grpc_messages` converts messages to calls. Import message classes from
`slacktide.wire.proto.messages`; this package loads nothing.
"""

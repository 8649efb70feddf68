"""Protocol-neutral calls and replies, and the codecs of both protocols.

The codecs convert bytes to `InferCall` and `InferReply` to bytes: `oip_json` (JSON with binary
tensors), `raw_tensors` (tensor data), `grpc_messages` (protobuf). Nothing here opens a socket or
knows the engine or a model.
"""

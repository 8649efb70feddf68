"""The wire: calls and answers in neutral form, and how both protocols write them.

Converts bytes to `InferCall` and `InferReply` to bytes; opens no socket, knows no engine and no
model. The codecs are imported where they are needed: `oip_json` (JSON with binary tensors),
`raw_tensors` (tensor data), `grpc_messages` (protobuf).
"""

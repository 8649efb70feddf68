"""The wire: calls and answers in neutral form, and how both protocols write them.

Converts bytes to `InferCall` and `InferReply` to bytes; opens no socket, knows no engine and no
model. The codecs are imported where they are needed: `oip_json` (JSON with binary tensors),
`raw_tensors` (tensor data), `grpc_messages` (protobuf).
"""

from slacktide.wire.calls import (
    Buffer,
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
)
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.parameters import CallOptions, parse_parameters
from slacktide.wire.status import WireStatus, status_of

__all__ = [
    "BadField",
    "Buffer",
    "CallContext",
    "CallOptions",
    "InferCall",
    "InferReply",
    "InputTensor",
    "OutputValue",
    "Parameter",
    "WireError",
    "WireStatus",
    "parse_parameters",
    "status_of",
]

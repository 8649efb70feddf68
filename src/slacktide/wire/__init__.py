"""The wire: calls and answers in neutral form, and how both protocols write them.

Converts bytes to `InferCall` and `InferReply` to bytes; opens no socket, knows no engine and no
model. The codecs are imported where they are needed: `oip_json` (JSON with binary tensors),
`raw_tensors` (tensor data), `grpc_messages` (protobuf).
"""

from slacktide.wire.calls import Buffer as Buffer
from slacktide.wire.calls import CallContext as CallContext
from slacktide.wire.calls import InferCall as InferCall
from slacktide.wire.calls import InferReply as InferReply
from slacktide.wire.calls import InputTensor as InputTensor
from slacktide.wire.calls import OutputValue as OutputValue
from slacktide.wire.calls import Parameter as Parameter
from slacktide.wire.errors import BadField as BadField
from slacktide.wire.errors import WireError as WireError
from slacktide.wire.parameters import CallOptions as CallOptions
from slacktide.wire.parameters import parse_parameters as parse_parameters
from slacktide.wire.status import WireStatus as WireStatus
from slacktide.wire.status import status_of as status_of

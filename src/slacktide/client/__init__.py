"""A client of video streams: each frame at a size that can be on time, one outcome for each.

Importing it loads neither the server nor grpcio, OpenCV or ONNX Runtime.
"""

from slacktide.client.aio import AioConnection as AioConnection
from slacktide.client.aio import AioSession as AioSession
from slacktide.client.fallback import OnnxFallback as OnnxFallback
from slacktide.client.messages import Advice as Advice
from slacktide.client.messages import ClientError as ClientError
from slacktide.client.messages import FrameOutcome as FrameOutcome
from slacktide.client.messages import FrameResult as FrameResult
from slacktide.client.options import FrameReply as FrameReply
from slacktide.client.options import SessionOptions as SessionOptions
from slacktide.client.sync import ClientSession as ClientSession
from slacktide.client.sync import ServerConnection as ServerConnection
from slacktide.client.sync import connect as connect

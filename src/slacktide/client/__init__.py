"""A client for video streams. It sends each frame at a size that can be answered on time, and
reports one outcome per frame.

Importing it loads neither the server nor grpcio, OpenCV or ONNX Runtime.
"""

from slacktide.client.aio import AioConnection as AioConnection
from slacktide.client.aio import AioSession as AioSession
from slacktide.client.core import ClientCore as ClientCore
from slacktide.client.fallback import OnnxFallback as OnnxFallback
from slacktide.client.messages import Advice as Advice
from slacktide.client.messages import AdviceChanged as AdviceChanged
from slacktide.client.messages import ClientAction as ClientAction
from slacktide.client.messages import ClientError as ClientError
from slacktide.client.messages import ClientEvent as ClientEvent
from slacktide.client.messages import ClientSettings as ClientSettings
from slacktide.client.messages import Connect as Connect
from slacktide.client.messages import Connected as Connected
from slacktide.client.messages import Disconnect as Disconnect
from slacktide.client.messages import EncodeFrame as EncodeFrame
from slacktide.client.messages import FallbackDone as FallbackDone
from slacktide.client.messages import FrameAcknowledged as FrameAcknowledged
from slacktide.client.messages import FrameAnswered as FrameAnswered
from slacktide.client.messages import FrameCaptured as FrameCaptured
from slacktide.client.messages import FrameEncoded as FrameEncoded
from slacktide.client.messages import FrameOutcome as FrameOutcome
from slacktide.client.messages import FrameResult as FrameResult
from slacktide.client.messages import FrameSent as FrameSent
from slacktide.client.messages import MoveAdvised as MoveAdvised
from slacktide.client.messages import ReportOutcome as ReportOutcome
from slacktide.client.messages import RunFallback as RunFallback
from slacktide.client.messages import SendFrame as SendFrame
from slacktide.client.messages import TimerDue as TimerDue
from slacktide.client.options import FrameReply as FrameReply
from slacktide.client.options import SessionOptions as SessionOptions
from slacktide.client.sync import ClientSession as ClientSession
from slacktide.client.sync import ServerConnection as ServerConnection
from slacktide.client.sync import connect as connect

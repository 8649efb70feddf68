"""Which requests of a pool run now, and which are admitted: `slack` (the default) and its rivals.

Pure: a scheduler holds one pool's queue and answers the engine's questions. It reads no clock, runs
no model, and knows neither protocols nor tensors.
"""

from slacktide.scheduling.clockwork import Clockwork as Clockwork
from slacktide.scheduling.clockwork import ClockworkOptions as ClockworkOptions
from slacktide.scheduling.edf import Edf as Edf
from slacktide.scheduling.edf import EdfOptions as EdfOptions
from slacktide.scheduling.fifo import Fifo as Fifo
from slacktide.scheduling.fifo import FifoOptions as FifoOptions
from slacktide.scheduling.orloj import Orloj as Orloj
from slacktide.scheduling.orloj import OrlojOptions as OrlojOptions
from slacktide.scheduling.orloj import OrlojText as OrlojText
from slacktide.scheduling.policies import DEFAULT_POLICY as DEFAULT_POLICY
from slacktide.scheduling.policies import POLICIES as POLICIES
from slacktide.scheduling.policies import PoolRecipe as PoolRecipe
from slacktide.scheduling.policies import make_scheduler as make_scheduler
from slacktide.scheduling.queue import DeadlineQueue as DeadlineQueue
from slacktide.scheduling.sized_fifo import Clipper as Clipper
from slacktide.scheduling.sized_fifo import ClipperOptions as ClipperOptions
from slacktide.scheduling.sized_fifo import Nexus as Nexus
from slacktide.scheduling.sized_fifo import NexusOptions as NexusOptions
from slacktide.scheduling.slack import Slack as Slack
from slacktide.scheduling.slack import SlackOptions as SlackOptions

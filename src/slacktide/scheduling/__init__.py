"""Schedulers: which requests of a pool are admitted and which run next; `slack` is the default.

Pure: a scheduler holds one pool's queue and answers the engine. It reads no clock, runs no model,
and knows neither protocols nor tensors.
"""

from slacktide.scheduling.arrival_policy import ArrivalPolicy as ArrivalPolicy
from slacktide.scheduling.deadline_policy import DeadlinePolicy as DeadlinePolicy
from slacktide.scheduling.edf import Edf as Edf
from slacktide.scheduling.edf import EdfOptions as EdfOptions
from slacktide.scheduling.fifo import FifoOptions as FifoOptions
from slacktide.scheduling.options import DeadlineOptions as DeadlineOptions
from slacktide.scheduling.options import QueueOptions as QueueOptions
from slacktide.scheduling.policies import DEFAULT_POLICY as DEFAULT_POLICY
from slacktide.scheduling.policies import POLICIES as POLICIES
from slacktide.scheduling.policies import PoolRecipe as PoolRecipe
from slacktide.scheduling.policies import make_scheduler as make_scheduler
from slacktide.scheduling.slack import SlackOptions as SlackOptions
from slacktide.scheduling.tables import Cached as Cached
from slacktide.scheduling.tables import Lazy as Lazy
from slacktide.scheduling.tables import TimeByRows as TimeByRows

"""Which requests of a pool run now, and who is let in: `slack` (the default) and its rivals.

Pure: a scheduler holds one pool's queue and answers the engine's questions. It reads no clock, runs
no model, and knows neither protocols nor tensors.
"""

from slacktide.scheduling.clipper import Clipper, ClipperOptions
from slacktide.scheduling.clockwork import Clockwork, ClockworkOptions
from slacktide.scheduling.edf import Edf, EdfOptions
from slacktide.scheduling.fifo import Fifo, FifoOptions
from slacktide.scheduling.nexus import Nexus, NexusOptions
from slacktide.scheduling.orloj import Orloj, OrlojOptions, OrlojText
from slacktide.scheduling.policies import (
    DEFAULT_POLICY,
    POLICIES,
    Policy,
    PolicyError,
    make_scheduler,
    option_defaults,
    policy_options,
)
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.recipe import PoolRecipe
from slacktide.scheduling.slack import Slack, SlackOptions

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Clipper",
    "ClipperOptions",
    "Clockwork",
    "ClockworkOptions",
    "DeadlineQueue",
    "Edf",
    "EdfOptions",
    "Fifo",
    "FifoOptions",
    "Nexus",
    "NexusOptions",
    "Orloj",
    "OrlojOptions",
    "OrlojText",
    "Policy",
    "PolicyError",
    "PoolRecipe",
    "Slack",
    "SlackOptions",
    "make_scheduler",
    "option_defaults",
    "policy_options",
]

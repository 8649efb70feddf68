"""Which requests of a pool run now: `fifo`, `edf`, `slack` (the default), and who is let in.

Pure: a scheduler holds one pool's queue and answers the engine's questions. It reads no clock, runs
no model, and knows neither protocols nor tensors.
"""

from slacktide.scheduling.edf import Edf, EdfOptions
from slacktide.scheduling.fifo import Fifo, FifoOptions
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
    "DeadlineQueue",
    "Edf",
    "EdfOptions",
    "Fifo",
    "FifoOptions",
    "Policy",
    "PolicyError",
    "PoolRecipe",
    "Slack",
    "SlackOptions",
    "make_scheduler",
    "option_defaults",
    "policy_options",
]

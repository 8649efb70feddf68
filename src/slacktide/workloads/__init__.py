"""What comes in: arrival processes and deadlines, drawn from a seed.

Pure: no file, no clock, no global chance. Sending what is drawn here is the business of `load`
(wall clock) and of the simulator (virtual clock).
"""

from slacktide.workloads.arrivals import (
    Arrivals,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    RateTrace,
    Replay,
    Times,
)
from slacktide.workloads.deadlines import Deadlines, Fixed, Mix, Uniform
from slacktide.workloads.errors import WorkloadError
from slacktide.workloads.specs import parse_arrivals, parse_deadlines, parse_number, parse_seconds

__all__ = [
    "Arrivals",
    "Constant",
    "Deadlines",
    "Fixed",
    "Gamma",
    "Mix",
    "OnOff",
    "Poisson",
    "RateTrace",
    "Replay",
    "Times",
    "Uniform",
    "WorkloadError",
    "parse_arrivals",
    "parse_deadlines",
    "parse_number",
    "parse_seconds",
]

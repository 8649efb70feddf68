"""What comes in: arrivals, how much work each is, deadlines and links, drawn from a seed.

Pure: no file, no clock, no global chance. Sending what is drawn here is the business of `load`
(wall clock) and of the simulator (virtual clock).
"""

from slacktide.workloads.arrivals import Arrivals, Constant, Gamma, Poisson, Replay
from slacktide.workloads.deadlines import Deadlines, Fixed, Mix, Uniform
from slacktide.workloads.errors import WorkloadError
from slacktide.workloads.lengths import (
    Drawn,
    Empirical,
    Exponential,
    Lengths,
    Mode,
    Modes,
    constant,
)
from slacktide.workloads.links import ConstantLink, Delivery, Link
from slacktide.workloads.point_process import Times
from slacktide.workloads.specs import parse_arrivals, parse_deadlines, parse_lengths
from slacktide.workloads.trace_formats import Trace, parse_trace
from slacktide.workloads.values import parse_number, parse_seconds
from slacktide.workloads.varying import Diurnal, OnOff, RateTrace
from slacktide.workloads.windows import GammaWindows, WindowCounts

__all__ = [
    "Arrivals",
    "Constant",
    "ConstantLink",
    "Deadlines",
    "Delivery",
    "Diurnal",
    "Drawn",
    "Empirical",
    "Exponential",
    "Fixed",
    "Gamma",
    "GammaWindows",
    "Lengths",
    "Link",
    "Mix",
    "Mode",
    "Modes",
    "OnOff",
    "Poisson",
    "RateTrace",
    "Replay",
    "Times",
    "Trace",
    "Uniform",
    "WindowCounts",
    "WorkloadError",
    "constant",
    "parse_arrivals",
    "parse_deadlines",
    "parse_lengths",
    "parse_number",
    "parse_seconds",
    "parse_trace",
]

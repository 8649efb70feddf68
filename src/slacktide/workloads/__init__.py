"""What comes in: arrivals, how much work each is, deadlines and links, drawn from a seed.

Pure: no file, no clock, no global chance. Sending what is drawn here is the business of `load`
(wall clock) and of the simulator (virtual clock).
"""

from slacktide.workloads.arrivals import Arrivals, Constant, Gamma, Poisson, Replay
from slacktide.workloads.bandwidth import BandwidthTrace
from slacktide.workloads.bandwidth_draws import draw_4g, draw_5g
from slacktide.workloads.bandwidth_formats import parse_bandwidths
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
from slacktide.workloads.link_specs import parse_bandwidth_trace, parse_link
from slacktide.workloads.links import ConstantLink, Delivery, Link, SharedLink, TraceLink
from slacktide.workloads.point_process import Times
from slacktide.workloads.specs import parse_arrivals, parse_deadlines, parse_lengths
from slacktide.workloads.trace_formats import Trace, parse_trace
from slacktide.workloads.values import parse_number, parse_seconds
from slacktide.workloads.varying import Diurnal, OnOff, RateTrace
from slacktide.workloads.windows import GammaWindows, WindowCounts

__all__ = [
    "Arrivals",
    "BandwidthTrace",
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
    "SharedLink",
    "Times",
    "Trace",
    "TraceLink",
    "Uniform",
    "WindowCounts",
    "WorkloadError",
    "constant",
    "draw_4g",
    "draw_5g",
    "parse_arrivals",
    "parse_bandwidth_trace",
    "parse_bandwidths",
    "parse_deadlines",
    "parse_lengths",
    "parse_link",
    "parse_number",
    "parse_seconds",
    "parse_trace",
]

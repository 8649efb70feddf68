"""Workloads drawn from a seed: arrivals, the work of each request, deadlines and links.

This package uses no file, clock or global random state. The load generator (`load`, wall clock) and
the simulator (virtual clock) send the requests that are drawn here.
"""

from slacktide.lab.workloads.arrivals import Arrivals as Arrivals
from slacktide.lab.workloads.arrivals import Constant as Constant
from slacktide.lab.workloads.arrivals import Gamma as Gamma
from slacktide.lab.workloads.arrivals import Poisson as Poisson
from slacktide.lab.workloads.arrivals import Replay as Replay
from slacktide.lab.workloads.bandwidth import MBIT as MBIT
from slacktide.lab.workloads.bandwidth import BandwidthTrace as BandwidthTrace
from slacktide.lab.workloads.bandwidth import draw_4g as draw_4g
from slacktide.lab.workloads.bandwidth import draw_5g as draw_5g
from slacktide.lab.workloads.bandwidth_formats import parse_bandwidths as parse_bandwidths
from slacktide.lab.workloads.deadlines import Deadlines as Deadlines
from slacktide.lab.workloads.deadlines import Fixed as Fixed
from slacktide.lab.workloads.deadlines import Mix as Mix
from slacktide.lab.workloads.lengths import Empirical as Empirical
from slacktide.lab.workloads.lengths import Exponential as Exponential
from slacktide.lab.workloads.lengths import Lengths as Lengths
from slacktide.lab.workloads.lengths import Mode as Mode
from slacktide.lab.workloads.lengths import Modes as Modes
from slacktide.lab.workloads.links import ConstantLink as ConstantLink
from slacktide.lab.workloads.links import Link as Link
from slacktide.lab.workloads.links import SharedLink as SharedLink
from slacktide.lab.workloads.links import TraceLink as TraceLink
from slacktide.lab.workloads.object_counts import ObjectCounts as ObjectCounts
from slacktide.lab.workloads.object_counts import draw_object_counts as draw_object_counts
from slacktide.lab.workloads.object_counts import parse_object_counts as parse_object_counts
from slacktide.lab.workloads.specs import parse_arrivals as parse_arrivals
from slacktide.lab.workloads.specs import parse_bandwidth_trace as parse_bandwidth_trace
from slacktide.lab.workloads.specs import parse_deadlines as parse_deadlines
from slacktide.lab.workloads.specs import parse_lengths as parse_lengths
from slacktide.lab.workloads.specs import parse_link as parse_link
from slacktide.lab.workloads.trace_formats import Trace as Trace
from slacktide.lab.workloads.trace_formats import parse_trace as parse_trace
from slacktide.lab.workloads.values import WorkloadError as WorkloadError
from slacktide.lab.workloads.values import parse_number as parse_number
from slacktide.lab.workloads.values import parse_seconds as parse_seconds
from slacktide.lab.workloads.varying import GammaWindows as GammaWindows
from slacktide.lab.workloads.varying import OnOff as OnOff
from slacktide.lab.workloads.varying import RateTrace as RateTrace
from slacktide.lab.workloads.varying import WindowCounts as WindowCounts

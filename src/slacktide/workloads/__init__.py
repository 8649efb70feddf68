"""What comes in: arrivals, how much work each is, deadlines and links, drawn from a seed.

Pure: no file, no clock, no global chance. Sending what is drawn here is the business of `load`
(wall clock) and of the simulator (virtual clock).
"""

from slacktide.workloads.arrivals import Arrivals as Arrivals
from slacktide.workloads.arrivals import Constant as Constant
from slacktide.workloads.arrivals import Gamma as Gamma
from slacktide.workloads.arrivals import Poisson as Poisson
from slacktide.workloads.arrivals import Replay as Replay
from slacktide.workloads.bandwidth import BandwidthTrace as BandwidthTrace
from slacktide.workloads.bandwidth import draw_4g as draw_4g
from slacktide.workloads.bandwidth import draw_5g as draw_5g
from slacktide.workloads.bandwidth_formats import parse_bandwidths as parse_bandwidths
from slacktide.workloads.deadlines import Deadlines as Deadlines
from slacktide.workloads.deadlines import Fixed as Fixed
from slacktide.workloads.deadlines import Mix as Mix
from slacktide.workloads.lengths import Empirical as Empirical
from slacktide.workloads.lengths import Exponential as Exponential
from slacktide.workloads.lengths import Lengths as Lengths
from slacktide.workloads.lengths import Mode as Mode
from slacktide.workloads.lengths import Modes as Modes
from slacktide.workloads.link_estimate import BytesPerPixel as BytesPerPixel
from slacktide.workloads.link_estimate import LinkEstimate as LinkEstimate
from slacktide.workloads.link_estimate import LinkEstimates as LinkEstimates
from slacktide.workloads.links import ConstantLink as ConstantLink
from slacktide.workloads.links import Link as Link
from slacktide.workloads.links import SharedLink as SharedLink
from slacktide.workloads.links import TraceLink as TraceLink
from slacktide.workloads.specs import parse_arrivals as parse_arrivals
from slacktide.workloads.specs import parse_bandwidth_trace as parse_bandwidth_trace
from slacktide.workloads.specs import parse_deadlines as parse_deadlines
from slacktide.workloads.specs import parse_lengths as parse_lengths
from slacktide.workloads.specs import parse_link as parse_link
from slacktide.workloads.trace_formats import Trace as Trace
from slacktide.workloads.trace_formats import parse_trace as parse_trace
from slacktide.workloads.values import WorkloadError as WorkloadError
from slacktide.workloads.values import parse_number as parse_number
from slacktide.workloads.values import parse_seconds as parse_seconds
from slacktide.workloads.varying import GammaWindows as GammaWindows
from slacktide.workloads.varying import OnOff as OnOff
from slacktide.workloads.varying import RateTrace as RateTrace
from slacktide.workloads.varying import WindowCounts as WindowCounts

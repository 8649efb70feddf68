"""What the planners are compared with: the baselines of Sponge §4, by the names it gives them, and
the usage-percentile rule of the Kubernetes VPA."""

from slacktide.scaling.baselines.fa2 import Fa2 as Fa2
from slacktide.scaling.baselines.fa2 import Fa2Options as Fa2Options
from slacktide.scaling.baselines.static import Static as Static
from slacktide.scaling.baselines.static import StaticOptions as StaticOptions
from slacktide.scaling.baselines.vpa import Vpa as Vpa
from slacktide.scaling.baselines.vpa import VpaOptions as VpaOptions

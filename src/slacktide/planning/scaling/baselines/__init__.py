"""What the planners are compared with: the baselines of Sponge §4, by the names it gives them, and
the usage-percentile rule of the Kubernetes VPA."""

from slacktide.planning.scaling.baselines.fa2 import Fa2 as Fa2
from slacktide.planning.scaling.baselines.fa2 import Fa2Options as Fa2Options
from slacktide.planning.scaling.baselines.static import Static as Static
from slacktide.planning.scaling.baselines.static import StaticOptions as StaticOptions
from slacktide.planning.scaling.baselines.vpa import Vpa as Vpa
from slacktide.planning.scaling.baselines.vpa import VpaOptions as VpaOptions

"""What the planners are compared with: the baselines of Sponge §4, by the names it gives them, and
the usage-percentile rule of the Kubernetes VPA."""

from slacktide.scaling.baselines.fa2 import Fa2, Fa2Options
from slacktide.scaling.baselines.static import Static, StaticOptions
from slacktide.scaling.baselines.vpa import Vpa, VpaOptions

__all__ = ["Fa2", "Fa2Options", "Static", "StaticOptions", "Vpa", "VpaOptions"]

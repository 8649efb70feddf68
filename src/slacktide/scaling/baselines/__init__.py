"""What the planners are compared with: the baselines of Sponge §5, by the names it gives them."""

from slacktide.scaling.baselines.static import Static, StaticOptions

__all__ = ["Static", "StaticOptions"]

"""Scaling planners by name: `make_planner("static", {"cores": 8})`.

Each model gets a planner of its own, which may keep what it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from slacktide.domain.registry import Registry
from slacktide.planning.scaling.baselines import Fa2, Static
from slacktide.planning.scaling.horizontal import Horizontal
from slacktide.planning.scaling.joint import Joint
from slacktide.planning.scaling.octopinf import OctopInf
from slacktide.planning.scaling.sponge import Sponge
from slacktide.planning.scaling.vertical import Vertical
from slacktide.planning.scaling.view import ScalingPolicy
from slacktide.planning.scaling.vpa import Vpa

PLANNERS: Registry[ScalingPolicy] = Registry(
    "planner",
    {
        "fa2": Fa2,
        "horizontal": Horizontal,
        "joint": Joint,
        "octopinf": OctopInf,
        "sponge": Sponge,
        "static": Static,
        "vertical": Vertical,
        "vpa": Vpa,
    },
    aliases={"paper": "sponge"},
)
"""Every planner, by name: its class is made of its options."""


def make_planner(name: str, options: Mapping[str, object]) -> ScalingPolicy:
    """A fresh planner for one model.

    Raises OptionError if the planner or an option is unknown (with the nearest one that exists) or
    a value is of the wrong type or out of range.
    """
    return PLANNERS.make(name, options)

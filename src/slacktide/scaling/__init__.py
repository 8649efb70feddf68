"""Planners that choose cores, replicas and batch sizes (see README.md)."""

from slacktide.scaling.autoscaler import (
    Autoscaler,
    AutoscalerSettings,
    ScaledModel,
    Standing,
)
from slacktide.scaling.planners import (
    PLANNERS,
    PlannerError,
    PlannerKind,
    make_planner,
    planner_defaults,
    planner_options,
)
from slacktide.scaling.view import (
    BatchSeconds,
    ModelView,
    ReplicaView,
    ScalingLimits,
    ScalingPlanner,
    VariantView,
    Waiting,
    Watchful,
    Wish,
)

__all__ = [
    "PLANNERS",
    "Autoscaler",
    "AutoscalerSettings",
    "BatchSeconds",
    "ModelView",
    "PlannerError",
    "PlannerKind",
    "ReplicaView",
    "ScaledModel",
    "ScalingLimits",
    "ScalingPlanner",
    "Standing",
    "VariantView",
    "Waiting",
    "Watchful",
    "Wish",
    "make_planner",
    "planner_defaults",
    "planner_options",
]

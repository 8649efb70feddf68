"""Planners that choose cores, replicas and batch sizes (see README.md)."""

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
    Wish,
)

__all__ = [
    "PLANNERS",
    "BatchSeconds",
    "ModelView",
    "PlannerError",
    "PlannerKind",
    "ReplicaView",
    "ScalingLimits",
    "ScalingPlanner",
    "VariantView",
    "Waiting",
    "Wish",
    "make_planner",
    "planner_defaults",
    "planner_options",
]

"""Planners that choose cores, replicas and batch sizes (see README.md)."""

from slacktide.scaling.view import (
    BatchSeconds,
    ModelView,
    ReplicaView,
    ScalingLimits,
    ScalingPlanner,
    Waiting,
    Wish,
)

__all__ = [
    "BatchSeconds",
    "ModelView",
    "ReplicaView",
    "ScalingLimits",
    "ScalingPlanner",
    "Waiting",
    "Wish",
]

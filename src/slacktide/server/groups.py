"""What an endpoint is for. One gate decides by group who may call it, over HTTP and gRPC alike."""

from __future__ import annotations

from enum import StrEnum


class Group(StrEnum):
    """Every route and every gRPC method belongs to exactly one. Triton's names where it has one."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    CONFIG = "model-config"
    STATISTICS = "statistics"
    REPOSITORY = "model-repository"
    CONTROL = "model-control"
    """Loading and unloading, which Triton counts to its repository."""
    SHARED_MEMORY = "shared-memory"
    TRACE = "trace"
    LOGGING = "logging"
    METRICS = "metrics"

"""Clusters: pods whose CPU is resized in place (see README.md)."""

from slacktide.cluster.pod_allocator import Hindrance, PodAllocator
from slacktide.cluster.pod_client import PodClient, PodName
from slacktide.cluster.pod_cpu import PodCpu, PodError, ResizeState

__all__ = ["Hindrance", "PodAllocator", "PodClient", "PodCpu", "PodError", "PodName", "ResizeState"]

"""Clusters: resizes the CPU of the server's own pod in place (see README.md)."""

from slacktide.cluster.pod_allocator import Hindrance as Hindrance
from slacktide.cluster.pod_allocator import PodAllocator as PodAllocator
from slacktide.cluster.pod_client import PodClient as PodClient
from slacktide.cluster.pod_client import PodError as PodError
from slacktide.cluster.pod_client import PodName as PodName

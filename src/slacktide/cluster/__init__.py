"""Clusters: keeps servers running, and resizes the CPU of the server's own pod (see README.md)."""

from slacktide.cluster.folder_lock import FolderLock as FolderLock
from slacktide.cluster.pod_allocator import Hindrance as Hindrance
from slacktide.cluster.pod_allocator import PodAllocator as PodAllocator
from slacktide.cluster.pod_client import PodClient as PodClient
from slacktide.cluster.pod_client import PodError as PodError
from slacktide.cluster.pod_client import PodName as PodName

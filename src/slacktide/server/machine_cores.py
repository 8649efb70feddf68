"""Which cores models may have on this machine, and who gives them to workers."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slacktide.cluster import PodAllocator, PodClient, PodName
from slacktide.executors.allocator import CpuAllocator
from slacktide.executors.cores import available_cores
from slacktide.executors.quota import choose_allocator
from slacktide.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class MachineCores:
    """What the settings come to here."""

    numbers: tuple[int, ...]
    """Processors that lanes may have, ascending."""
    allocator: CpuAllocator
    pod: PodAllocator | None = None
    """The allocator, if it resizes our pod."""


def open_cores(settings: ServerSettings) -> MachineCores:
    """Find out. May take a call to a Kubernetes API server; raises PodError if that fails."""
    if settings.cpu_allocator == "kubernetes":
        pod = PodAllocator(PodClient(PodName.ours()), overhead=settings.pod_overhead)
        pod.start()
        # Not cut to the quota: that is what is to grow.
        return MachineCores(tuple(sorted(os.sched_getaffinity(0)))[: settings.cores], pod, pod)
    share = settings.core_share if settings.cpu_allocator == "cgroup" else None
    return MachineCores(available_cores()[: settings.cores], choose_allocator(share))

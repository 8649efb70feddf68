"""`CpuAllocator`: how the process of a replica gets its cores, and how that is confirmed.

A plan counts on cores only once they have been read back, so every grant ends in a `Grant` that
says what the process really has. Three backends: affinity (here; the default), affinity with a
control group's quota (`quota`), and pods of Kubernetes, which belong to a higher room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slacktide.executors.cores import move_threads, thread_cores


@dataclass(frozen=True, slots=True)
class Grant:
    """What a process has now: read back, not assumed."""

    cores: tuple[int, ...]
    """Processors that its threads may run on, ascending."""
    amount: float
    """CPU seconds per second that it may use; at most the number of its cores."""
    detail: str = ""
    """Why this is not what was asked for; empty if it is."""


Confirm = Callable[[Grant], None]


class CpuAllocator(Protocol):
    """Gives cores to the processes of replicas. Belongs to one event loop; nothing here blocks."""

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """Begin to give every thread of process `pid` these cores, in place of those it had.

        `confirm` is called on the loop, once, when that is settled, for better or worse: from
        inside this call where it takes no time, maybe seconds later where an orchestrator decides.
        A newer grant for the same process replaces an older one that is not settled; the older
        `confirm` need not be called then. Raises ProcessLookupError if the process is gone; if it
        ends later, `confirm` is not called. An allocator that could not give all of them may
        call it again should more be had later, until the next grant for that process.
        """
        ...

    def forget(self, pid: int) -> None:
        """The process has ended: give back what was kept for it."""
        ...


class AffinityAllocator:
    """Moves all threads of the process by their affinity masks: 0.1 ms, and no privileges.

    Disjoint sets are the caller's business: a mask limits a process, it does not keep others out.
    """

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """See CpuAllocator; settled from inside the call."""
        found, detail = bind(pid, cores)
        confirm(Grant(found, float(len(found)), detail))

    def forget(self, pid: int) -> None:
        """Nothing is kept."""


def bind(pid: int, cores: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Bind every thread of `pid`; where it may run then, and why not on all of `cores`.

    The kernel quietly leaves out cores that the process's cpuset does not have, and refuses only if
    none is left. Raises ProcessLookupError if the process is gone.
    """
    wanted = tuple(sorted(cores))
    try:
        found = move_threads(pid, wanted)
    except ProcessLookupError:
        raise
    except OSError as error:
        found = thread_cores(pid)
        return found, f"cannot run on cores {_names(wanted)}: {error.strerror}"
    if found == wanted:
        return found, ""
    return found, f"asked for cores {_names(wanted)}, may run on {_names(found)} only"


def _names(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores)) or "none"

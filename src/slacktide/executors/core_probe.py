"""`CoreProbe`: finds out whether other programs use the cores of a measurement.

Between two steps of the measurement, while our own processes are idle, it computes for a moment on
these cores. CPU time ÷ wall time is then 1 on an idle core, and 0.5 on a core that another program
uses fully.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slacktide.executors.cores import pinned
from slacktide.profiles import busy_note, is_quiet

MOMENT_S = 0.1
"""Wall time of one look at a set of cores: about 20 turns of the kernel's scheduler."""
PAUSES_S = (0.3, 1.0)
"""Seconds before the second and third look, in which our own processes finish their work."""

Compute = Callable[[Sequence[int]], float]


class CoreProbe:
    """Records the smallest share of CPU time that the probe got."""

    def __init__(self, *core_sets: Sequence[int], compute: Compute | None = None) -> None:
        """One thread computes on each set. `compute` measures CPU ÷ wall time on a set."""
        self.share = 1.0
        self._core_sets = core_sets
        self._compute = compute or cpu_share

    def look(self) -> None:
        """Look at each set, up to three times, as a program may run only for a moment. Blocks
        for `MOMENT_S` per look, and for `PAUSES_S` in between."""
        for cores in self._core_sets:
            share = self._compute(cores)
            for pause in PAUSES_S:
                if is_quiet(share):
                    break
                time.sleep(pause)
                share = max(share, self._compute(cores))
            self.note(share)

    def note(self, share: float | None) -> None:
        """Include a share that was measured elsewhere, such as that of a profile."""
        self.share = min(self.share, 1.0 if share is None else share)


def busy_warning(share: float | None) -> str:
    """A warning to print instead of a headline; empty if the cores were free or `share` is None."""
    if not (note := busy_note(share)):
        return ""
    return (
        f"These figures were {note}, so they are unreliable. Run the command again when "
        "the machine is idle."
    )


def cpu_share(cores: Sequence[int]) -> float:
    """CPU time ÷ wall time of this thread, computing on `cores` for `MOMENT_S`; 0 to 1."""
    with pinned(cores):
        begin, used = time.perf_counter(), time.thread_time()
        while (wall := time.perf_counter() - begin) < MOMENT_S:
            pass
        return min(1.0, (time.thread_time() - used) / wall)

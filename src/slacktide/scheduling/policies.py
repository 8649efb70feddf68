"""Policies by name: `make_scheduler("slack", {"deferral_discount": 0.8}, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from slacktide._version import PAPERS
from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.engine.ports import PoolParts, PoolView, Scheduler
from slacktide.engine.time_share import SoloCounts, SoloProfiling
from slacktide.engine.unmeasured_queue import SHARE, UnmeasuredRules
from slacktide.profiles import BatchTimes, ClassedTimes, ExitTimes, ShapedTimes
from slacktide.scheduling.arrival_policy import ArrivalPolicy
from slacktide.scheduling.edf import Edf
from slacktide.scheduling.fifo import Fifo
from slacktide.scheduling.guard import GuardedScheduler
from slacktide.scheduling.options import QueueOptions
from slacktide.scheduling.orloj import Orloj, OrlojText
from slacktide.scheduling.slack import Slack

DEFAULT_POLICY = "slack"


POLICIES: Registry[Scheduler] = Registry(
    "scheduler",
    {
        "fifo": Fifo,
        "edf": Edf,
        "orloj": Orloj,
        "orloj_text": OrlojText,
        "slack": Slack,
    },
    options=QueueOptions,
    absent=dict.fromkeys(("clipper", "nexus", "clockwork"), PAPERS),
)
"""Every policy, by name: its class is made of `(options, *, max_batch, times, view)`, the options
being `QueueOptions` or more."""


def make_scheduler(
    name: str,
    options: Mapping[str, object],
    *,
    max_batch: int,
    times: BatchTimes,
    view: PoolView,
    failed: Callable[[str], None] | None = None,
) -> Scheduler:
    """A fresh scheduler for one pool. One that is not built in is guarded (guard.py); `failed` is
    called if it breaks its contract. Raises OptionError if the policy or an option is unknown (with
    the nearest one that exists) or a value is of the wrong type or out of range."""
    if max_batch < 1:
        raise OptionError(("max_batch", f"expected at least 1, got {max_batch}"))
    policy, checked = POLICIES.find(name), POLICIES.read(name, options)
    make = partial(policy.make, checked, max_batch=max_batch, times=times, view=view)
    if policy.built_in:
        return make()
    max_queue = getattr(checked, "max_queue", None)
    return GuardedScheduler(name, make, max_queue=max_queue, failed=failed)


@dataclass(frozen=True, slots=True)
class PoolRecipe:
    """How a pool's parts are made, as plain data: a policy by name, its options, its share. One way
    to make them, so that a server, a replay of what it recorded and a simulation hold the same
    objects."""

    scheduler: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that are stated; the others have their defaults. JSON-ready."""
    share: float = 1.0
    profiling: float = 0.0
    """Part of its lanes' time in which finished requests may run again, to learn their lengths."""
    size: int = 0
    """Of a variant of a family; see `PoolParts`, also for the next."""
    rescue: Sequence[str] = ()
    exits: bool = False
    """Whether its requests may leave early, if a plan says how."""

    def parts(
        self,
        times: BatchTimes,
        *,
        max_batch: int,
        view: PoolView,
        counts: SoloCounts | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> PoolParts:
        """A fresh scheduler that asks `times`. Raises OptionError as `make_scheduler` does.
        `counts`: where solo runs are counted, if they are to be counted on from before. `failed`:
        as of `make_scheduler`."""
        whole = times.inner if isinstance(times, ExitTimes) else times
        if self.exits:
            times = ExitTimes(whole)
        scheduler = make_scheduler(
            self.scheduler, self.options, max_batch=max_batch, times=times, view=view, failed=failed
        )
        solo = None
        if self.profiling > 0.0 and isinstance(whole, ClassedTimes):
            solo = SoloProfiling(whole.wants, self.profiling, counts or SoloCounts())
        unmeasured = None
        if isinstance(whole, ShapedTimes) and not self._serves_in_order():
            unmeasured = self._unmeasured(whole)
        rescue = tuple(self.rescue)
        return PoolParts(scheduler, times, self.share, solo, unmeasured, self.size, rescue)

    def _serves_in_order(self) -> bool:
        policy = POLICIES.find(self.scheduler).make
        return isinstance(policy, type) and issubclass(policy, ArrivalPolicy)

    def _unmeasured(self, times: ShapedTimes) -> UnmeasuredRules:
        """What becomes of requests whose shape `times` cannot judge. A policy that serves in order
        of arrival judges none."""
        options = POLICIES.read(self.scheduler, self.options)
        return UnmeasuredRules(
            times.measured,
            times.has_run,
            times.reach,
            refuse=getattr(options, "guarantee", None) == "p99",
            share=getattr(options, "best_effort_share", SHARE),
            most=getattr(options, "max_queue", None),
        )

"""Schedulers by name: `make_scheduler("slack", {"deferral_discount": 0.8}, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from slacktide._version import PAPERS
from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.engine.ports import PoolParts, PoolView, Scheduler
from slacktide.engine.time_share import SoloCounts, SoloProfiling
from slacktide.engine.unmeasured_queue import UnmeasuredRules
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
    absent=dict.fromkeys(("clipper", "nexus", "clockwork", "symphony"), PAPERS),
)
"""Every scheduler by name: its class is called with `(options, *, max_batch, times, view)`, where
the options extend `QueueOptions`."""


def make_scheduler(
    name: str,
    options: Mapping[str, object],
    *,
    max_batch: int,
    times: BatchTimes,
    view: PoolView,
    failed: Callable[[str], None] | None = None,
) -> Scheduler:
    """Make a scheduler for one pool. A foreign scheduler is guarded (guard.py); `failed` is called
    if it breaks its contract. Raises OptionError for an unknown scheduler or option, naming the
    nearest valid one, and for invalid values."""
    if max_batch < 1:
        raise OptionError(("max_batch", f"expected at least 1, got {max_batch}"))
    policy, checked = POLICIES.find(name), _options(name, options)
    make = partial(policy.make, checked, max_batch=max_batch, times=times, view=view)
    if policy.built_in:
        return make()
    return GuardedScheduler(name, make, max_queue=checked.max_queue, failed=failed)


def _options(name: str, values: Mapping[str, object]) -> QueueOptions:
    options = POLICIES.read(name, values)
    assert isinstance(options, QueueOptions)  # the registry takes no others
    return options


@dataclass(frozen=True, slots=True)
class PoolRecipe:
    """How to make a pool's parts, as plain data: the scheduler's name, its options, the pool's
    share. A server, a replay of its recording and a simulation use the same recipe, so their parts
    are equal."""

    scheduler: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Options with other values than the default. JSON-ready."""
    share: float = 1.0
    profiling: float = 0.0
    """Share of its lanes' time in which finished requests may run again, to learn their lengths."""
    size: int = 0
    """See `PoolParts`."""
    rescue: Sequence[str] = ()
    """See `PoolParts`."""
    exits: bool = False
    """Whether its requests may leave early if a plan says so."""

    def parts(
        self,
        times: BatchTimes,
        *,
        max_batch: int,
        view: PoolView,
        counts: SoloCounts | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> PoolParts:
        """Make the parts around `times`. Raises OptionError like `make_scheduler`. `counts`: totals
        of solo runs to continue. `failed`: see `make_scheduler`."""
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
            options = _options(self.scheduler, self.options)
            unmeasured = UnmeasuredRules(
                whole.measured,
                whole.has_run,
                whole.reach,
                refuse=options.guarantees_p99,
                share=options.unmeasured_share,
                most=options.max_queue,
            )
        rescue = tuple(self.rescue)
        return PoolParts(scheduler, times, self.share, solo, unmeasured, self.size, rescue)

    def _serves_in_order(self) -> bool:
        """Whether the scheduler serves in order of arrival, so that it needs no predictions."""
        policy = POLICIES.find(self.scheduler).make
        return isinstance(policy, type) and issubclass(policy, ArrivalPolicy)

"""Policies by name: `make_scheduler("slack", {"kappa": 0.8}, ...)`.

A policy's options are the fields of its options class, checked as `options.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from slacktide.engine.ports import BatchTimes, PoolParts, PoolView, Scheduler
from slacktide.engine.samples import SampleCounts, Sampling
from slacktide.profiles import ClassedTimes
from slacktide.scheduling.clipper import Clipper, ClipperOptions
from slacktide.scheduling.clockwork import Clockwork, ClockworkOptions
from slacktide.scheduling.edf import Edf, EdfOptions
from slacktide.scheduling.fifo import Fifo, FifoOptions
from slacktide.scheduling.nexus import Nexus, NexusOptions
from slacktide.scheduling.options import checked_options, entry_named
from slacktide.scheduling.orloj import Orloj, OrlojOptions, OrlojText
from slacktide.scheduling.slack import Slack, SlackOptions

DEFAULT_POLICY = "slack"


class PolicyError(ValueError):
    """An unknown policy or option, or a bad value. The caller's mistake; the text says which."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that can be named: its options class and how it is made from options."""

    name: str
    options: type[Any]
    make: Callable[[Any, int, BatchTimes, PoolView], Scheduler]
    """(options, max_batch, times, view) -> scheduler."""


class _Planning(Protocol):
    """A scheduler's class, if it goes by predictions and lanes, as most do."""

    def __call__(
        self, options: Any, /, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> Scheduler: ...


def _planning(name: str, options: type[Any], scheduler: _Planning) -> Policy:
    return Policy(
        name,
        options,
        lambda options, max_batch, times, view: scheduler(
            options, max_batch=max_batch, times=times, view=view
        ),
    )


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "fifo",
            FifoOptions,
            lambda options, max_batch, times, view: Fifo(options, max_batch=max_batch),
        ),
        _planning("edf", EdfOptions, Edf),
        Policy(
            "clipper",
            ClipperOptions,
            lambda options, max_batch, times, view: Clipper(options, max_batch=max_batch),
        ),
        Policy(
            "nexus",
            NexusOptions,
            lambda options, max_batch, times, view: Nexus(
                options, max_batch=max_batch, times=times
            ),
        ),
        _planning("clockwork", ClockworkOptions, Clockwork),
        _planning("orloj", OrlojOptions, Orloj),
        _planning("orloj_text", OrlojOptions, OrlojText),
        _planning("slack", SlackOptions, Slack),
    )
}
"""Every policy, by name."""


def make_scheduler(
    name: str,
    options: Mapping[str, object],
    *,
    max_batch: int,
    times: BatchTimes,
    view: PoolView,
) -> Scheduler:
    """A fresh scheduler for one pool.

    Raises PolicyError if the policy or an option is unknown (with the nearest one that exists) or
    a value is of the wrong type or out of range.
    """
    if max_batch < 1:
        raise PolicyError(f"max_batch must be at least 1, got {max_batch}")
    checked = policy_options(name, options)
    return POLICIES[name].make(checked, max_batch, times, view)


def policy_options(name: str, options: Mapping[str, object]) -> Any:
    """The options object of policy `name`, defaults filled in. Raises as `make_scheduler` does."""
    policy = entry_named("scheduler", name, POLICIES, PolicyError)
    return checked_options(f"scheduler {name!r}", policy.options, options, PolicyError)


def option_defaults(name: str) -> dict[str, object]:
    """Every option of policy `name` with its default. Raises PolicyError if there is none."""
    options = policy_options(name, {})
    return {field.name: getattr(options, field.name) for field in fields(options)}


@dataclass(frozen=True, slots=True)
class PoolRecipe:
    """How a pool's parts are made, as plain data: a policy by name, its options, its share.

    One way to make them, so that a server, a replay of what it recorded and a simulation hold the
    same objects.
    """

    scheduler: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that are stated; the others have their defaults. JSON-ready."""
    share: float = 1.0
    profiling: float = 0.0
    """Part of its lanes' time in which finished requests may run again, to learn their lengths."""

    def parts(
        self,
        times: BatchTimes,
        *,
        max_batch: int,
        view: PoolView,
        counts: SampleCounts | None = None,
    ) -> PoolParts:
        """A fresh scheduler that asks `times`. Raises PolicyError as `make_scheduler` does.

        `counts`: where samples are counted, if they are to be counted on from before.
        """
        scheduler = make_scheduler(
            self.scheduler, self.options, max_batch=max_batch, times=times, view=view
        )
        sampling = None
        if self.profiling > 0.0 and isinstance(times, ClassedTimes):
            sampling = Sampling(times.wants, self.profiling, counts or SampleCounts())
        return PoolParts(scheduler, times, self.share, sampling)

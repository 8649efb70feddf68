"""`measure`: run a model in calm and time it, by batch size and cores.

One replica is started, on the executor that will serve, with the sessions that a served one has,
and moved from one number of cores to the next as a served one is. It gets batches of synthetic
requests of one row each, and a batch is timed as the driver will see it: from `run` to the report,
hand-over and gathering included.

**Which sizes.** 1, 2, 4, … up to the model's maximum. Two warm-up runs of each come first (one if
it is slow), not counted. A size is left out, with all above it, if it fails, or if measuring it
would take longer than the whole budget by itself, judged by twice the time of half the size; the
table then extrapolates. `thorough` leaves out only what fails. Where rows may be of other sizes, a
few of these are measured beside the table (measuring_sizes.py).

**How often.** Every point gets `FEWEST` samples, whatever the budget. What is left of it is
divided evenly among the core counts to come, and then given to the size with the least n · √t (n
samples so far, t its time): samples in inverse proportion to √t are the best use of time for
means of equal relative spread (Neyman's allocation). So the sizes take turns, large ones less
often, and a machine that slows down meanwhile slows all of them. A point is done at
`ENOUGH_SAMPLES`, from where its p99 is its own; `thorough` goes on until all are.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slacktide.domain import ExitPolicy
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.cores import hardware_fingerprint
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.measuring_sizes import (
    FEWEST,
    measure_sizes,
    sizes_beside,
    with_image_sizes,
)
from slacktide.executors.onnx_file import DEFAULT_MAX_BATCH
from slacktide.executors.onnx_runtime import Fault, fault_of
from slacktide.executors.ports import Arranged, Executor, ModelSource, SessionSize
from slacktide.executors.row_check import find_dependence
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.executors.timed_replica import BatchError, MeasuringError, TimedReplica
from slacktide.profiles import (
    ENOUGH_SAMPLES,
    CpuShare,
    LatencyTable,
    ProfileRecord,
    batch_sizes,
    session_sizes,
)
from slacktide.profiles.latency_fit import SizeTime

WARM_UPS = 2
GUESS_S = 0.05
"""Seconds of a row on one core where nothing is known. No request is judged by it."""
_ARENA_LIMIT = 1 << 31
"""Bytes of address space; memory is used where inputs are written only."""

Progress = Callable[[float, str], None]
"""(share done, 0 to 1; what is going on)"""


@dataclass(frozen=True, slots=True)
class Measurement:
    record: ProfileRecord
    """What to keep of it in a file."""
    interface: ModelInterface
    seconds: float
    """How long it took, starts of replicas included."""
    note: str = ""
    """Why batch sizes were skipped."""
    sessions: tuple[SessionSize, ...] = ()
    """Those that the replica had, and what they took."""
    guess: str = ""
    """Why no row runs that could be made up, so that the times are only a guess."""
    dependence: str = ""
    """Why requests may not share a batch; empty if nothing is against it."""


async def measure(
    executor: Executor,
    source: ModelSource,
    *,
    cores: Sequence[tuple[int, ...]],
    device: str = "cpu",
    budget_s: float = 10.0,
    thorough: bool = False,
    progress: Progress | None = None,
    seed: int = 0,
    patience_s: float = 300.0,
    clock: Callable[[], float] = time.perf_counter,
    check_rows: bool = False,
) -> Measurement:
    """Measure `source` on each of these core sets (no two of one size) of a device.

    The replica has the sessions that `source` names; if it names none, those of a replica that is
    resized between the smallest and the largest of the sets.

    `budget_s` covers all of it. Slow models take longer, up to about twice that; those for which
    even batch 1 is too slow take four runs of it on each core set, however long. A start or a run
    without a report for `patience_s` is abandoned and its replica killed. `seed` settles the
    inputs. The executor is the caller's, and stays open. `check_rows`: also find out whether rows
    influence each other (row_check.py).

    If no row runs that could be made up, the record is a `guess`. Raises MeasuringError if the
    model cannot be opened, or dies, and ValueError for core sets that make no sense.
    """
    sets = sorted(cores, key=len)
    counts = [len(numbers) for numbers in sets]
    if not counts or counts[0] < 1 or len(set(counts)) != len(counts):
        raise ValueError(f"expected core sets of different sizes, got {list(cores)}")
    begin = clock()
    work = _Work(begin + budget_s, budget_s, thorough, clock, _Meter(progress, len(sets)))
    times: dict[tuple[int, int], list[float]] = {}
    size_times: list[SizeTime] = []
    cpu_shares: list[float] = []
    dependence = ""
    source = replace(source, threads=source.threads or session_sizes(counts[0], counts[-1]))
    arena = Arena(_ARENA_LIMIT, name="slacktide-profile")
    work.meter.enter(0, f"starting on {_cores(counts[-1])}")
    try:
        # On the most cores: its sessions are soonest warm there.
        replica = TimedReplica(executor, source, sets[-1], device, arena, clock, patience_s)
        try:
            opened = await replica.ready()
            interface = opened.interface
            source, sized = with_image_sizes(source, interface, all_of_them=thorough)
            try:
                rows = await asyncio.to_thread(SyntheticRows, interface, source)
            except ValueError as error:
                raise MeasuringError(str(error), permanent=True) from None
            shapes = rows.shapes({**opened.row_shapes, **sized})
            generator = np.random.default_rng(seed)
            inputs = await asyncio.to_thread(rows.payloads, shapes, arena, generator=generator)
            sizes = batch_sizes(max(1, interface.max_batch))
            other_sizes = sizes_beside(shapes, rows, source, interface)
            guess = opened.cold
            for index, core_set in enumerate(() if guess else sets):
                work.meter.enter(index, f"moving to {_cores(len(core_set))}")
                if len(sets) > 1:
                    await replica.resize(core_set)
                replica.inputs, replica.size = inputs, rows.image_size(shapes)
                warm = await work.warm_up(replica, sizes, len(sets))
                if not warm:
                    guess = work.note
                    break
                sizes = tuple(warm)
                replica.cpu = CpuShare()
                samples = await work.sample(replica, warm, len(sets) - index)
                at_most = math.inf if thorough else budget_s / 2 / len(sets)
                size_times += await measure_sizes(
                    replica, other_sizes, rows, arena, warm, most_s=at_most, seed=seed
                )
                if replica.cpu.value is not None:
                    cpu_shares.append(replica.cpu.value)
                times.update({(size, len(core_set)): samples[size] for size in sizes})
            if check_rows and not guess:
                dependence = await find_dependence(replica, opened, rows, shapes, arena)
        finally:
            replica.close()
    finally:
        arena.close()
    work.meter.finish()
    if guess:
        most = max(1, interface.max_batch)
        table = LatencyTable.linear(0.2 * GUESS_S, 0.8 * GUESS_S, most, cores=counts, spread=2.0)
        record = ProfileRecord(table, shapes, device, threads=source.threads)
        return Measurement(record, interface, clock() - begin, "", opened.sessions, guess)
    kept_samples = {point: seconds for point, seconds in times.items() if point[0] in sizes}
    stated_batch = (source.max_batch or DEFAULT_MAX_BATCH) if interface.batches else 1
    record = ProfileRecord(
        LatencyTable.from_samples(kept_samples),
        shapes,
        device,
        hardware_fingerprint().facts,
        tuple(n for n in batch_sizes(max(stated_batch, interface.max_batch)) if n not in sizes),
        tuple(size_times),
        source.threads,
        # A function may wait for whatever it likes, and so may a host thread for its accelerator.
        min(cpu_shares, default=None) if device == "cpu" and source.function is None else None,
    )
    seconds = clock() - begin
    return Measurement(
        record, interface, seconds, work.note, opened.sessions, dependence=dependence
    )


@dataclass(slots=True)
class _Work:
    """Which batch size runs next, and when it is enough."""

    end: float
    budget_s: float
    thorough: bool
    clock: Callable[[], float]
    meter: _Meter
    note: str = ""

    async def warm_up(
        self, replica: TimedReplica, sizes: Sequence[int], core_counts: int
    ) -> dict[int, float]:
        """Seconds of the last warm-up run of each size that is worth measuring, ascending; none if
        the first fails. Raises MeasuringError if that is for want of memory."""
        warm: dict[int, float] = {}
        for size in sizes:
            if warm and not self.thorough:
                guess = 2 * next(reversed(warm.values()))
                if guess * (FEWEST + WARM_UPS) * core_counts > self.budget_s:
                    self.note = f"a batch of {size} takes too long for {self.budget_s:g} s"
                    break
            self.meter.show(0.0, f"warming up, {_cores(replica.cores)}, batch {size}")
            try:
                for _ in range(WARM_UPS):
                    warm[size] = await replica.run(size)
                    if warm[size] > self.budget_s / 20:
                        break
            except BatchError as error:
                warm.pop(size, None)
                if not warm and fault_of(str(error)) is Fault.MEMORY:
                    raise MeasuringError(f"a single row fails: {error}") from None
                self.note = f"a batch of {size} fails: {error}" if warm else str(error)
                break
        return warm

    async def sample(
        self, replica: TimedReplica, warm: Mapping[int, float], core_counts_left: int
    ) -> dict[int, list[float]]:
        """Samples of each size: this core count's part of the budget, `FEWEST` at least."""
        begin = self.clock()
        allowed = max(self.end - begin, 0.0) / core_counts_left
        samples: dict[int, list[float]] = {size: [] for size in warm}
        typical = dict(warm)
        while True:
            seconds_left = math.inf if self.thorough else begin + allowed - self.clock()
            size = _next_size(samples, typical, seconds_left)
            if size is None:
                return samples
            try:
                seconds = await replica.run(size)
            except BatchError as error:
                raise MeasuringError(f"a batch of {size} fails at times: {error}") from None
            samples[size].append(seconds)
            typical[size] += (seconds - typical[size]) / (len(samples[size]) + 1)
            done = sum(map(len, samples.values())) / (ENOUGH_SAMPLES * len(samples))
            used = 0.0 if self.thorough else (self.clock() - begin) / max(allowed, 1e-9)
            self.meter.show(max(done, used), f"{_cores(replica.cores)}, batch {size}")


def _next_size(
    samples: Mapping[int, list[float]], typical: Mapping[int, float], seconds_left: float
) -> int | None:
    """The size to run next with `seconds_left` seconds to go; None if nothing more is worth it."""
    done = {size: len(seconds) for size, seconds in samples.items()}
    fewest = min(done, key=lambda size: done[size])
    if done[fewest] < FEWEST:
        return fewest
    more = [size for size in done if done[size] < ENOUGH_SAMPLES and typical[size] <= seconds_left]
    return min(more, key=lambda size: done[size] * math.sqrt(typical[size]), default=None)


class _Meter:
    """Turns parts done of each core count into one number that only rises; in steps of 1 %."""

    def __init__(self, progress: Progress | None, parts: int) -> None:
        self._progress = progress
        self._parts = parts
        self._part = 0
        self._shown = -1.0

    def enter(self, part: int, text: str) -> None:
        self._part = part
        self.show(0.0, text)

    def show(self, share: float, text: str) -> None:
        fraction = (self._part + min(max(share, 0.0), 1.0)) / self._parts
        if self._progress is not None and (fraction >= self._shown + 0.01 or share == 0.0):
            self._shown = max(self._shown, fraction)
            self._progress(self._shown, text)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(1.0, "done")


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


async def measure_stages(
    executor: Executor,
    source: ModelSource,
    policy: ExitPolicy,
    *,
    cores: tuple[int, ...],
    device: str = "cpu",
    patience_s: float = 300.0,
) -> Arranged:
    """Time the stages of a model that is cut at all ramps of a policy, beside the model whole.
    Raises MeasuringError where it cannot be cut so, or be opened."""
    arena = Arena(_ARENA_LIMIT, name="slacktide-stages")
    replica = TimedReplica(executor, source, cores, device, arena, time.perf_counter, patience_s)
    try:
        await replica.ready()
        return await replica.arrange(policy)
    finally:
        replica.close()
        arena.close()

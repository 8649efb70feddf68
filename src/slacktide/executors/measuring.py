"""`measure`: times a model by batch size and number of cores.

One replica is started on the executor that will serve, with the same sessions, and moved from one
number of cores to the next, as a replica that serves would be. It runs batches of synthetic
requests of one row each. A batch is timed as the driver sees it: from `run` to the report,
hand-over and gathering included.

**Which sizes.** 1, 2, 4, … up to the model's maximum. Each size first gets two warm-up runs (one if
it is slow). Warm-up runs do not count as samples, except for the single run of a slow size. If a
size fails, or would make the table exceed `TABLE` budgets (each size is assumed to take twice as
long as the size before it), it and all larger sizes are skipped, and the table extrapolates.
`thorough` skips only sizes that fail. If rows may have other sizes, a few of these are measured in
addition to the table (measuring_sizes.py), for half of the budget at most.

**How often.** Every point (a batch size on a number of cores) gets `FEWEST` samples, whatever the
budget. The rest of the budget is divided evenly among the remaining core counts, and each run goes
to the size with the least n · √t (n samples so far, t its time): samples in inverse proportion to
√t are the best use of time for means of equal relative spread (Neyman's allocation). So the sizes
take turns, large ones less often, and a machine that slows down affects all of them. A point is
done at `ENOUGH_SAMPLES`, which suffice for a p99 of its own; `thorough` continues until all points
are done.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slacktide.domain import ExitPolicy
from slacktide.domain.padding import PaddedOutput
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.cores import hardware_fingerprint
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.measuring_sizes import (
    FEWEST,
    OtherSize,
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
TABLE = 1.4
"""Multiple of the budget that the required runs of all batch sizes may take."""
SLOW = 0.05
"""Share of the budget above which a run is slow."""
OPENING = 0.25
"""Share of the budget in which the sessions of a replica warm up."""
GUESS_S = 0.05
"""Assumed seconds of a row on one core without a measurement. No request is judged by this
guess."""
_ARENA_LIMIT = 1 << 31
"""Bytes of address space for inputs. Only inputs that are written use memory."""

Progress = Callable[[float, str], None]
"""Callback with the share done, 0 to 1, and the current step."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of `measure`."""

    record: ProfileRecord
    """The profile, to be stored in a file."""
    interface: ModelInterface
    seconds: float
    """Duration of the measurement, starts of replicas included."""
    note: str = ""
    """Why batch sizes were skipped."""
    needed_s: float = 0.0
    """Approximate budget for which nothing is skipped; 0 if no size was skipped for lack of
    time."""
    sessions: tuple[SessionSize, ...] = ()
    """Sessions of the replica."""
    guess: str = ""
    """Why the times are only a guess: no synthetic row runs. Empty if they were measured."""
    dependence: str = ""
    """Why requests must not share a batch; empty if they may."""
    untimed: int = 0
    """Number of stated row sizes that were not timed both alone and in the largest batch."""
    padded_outputs: Mapping[str, PaddedOutput] = field(default_factory=dict)
    """See `OpenedModel`."""


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
    """Measure `source` on each of these core sets of a device. No two sets have the same size.

    The replica has the sessions that `source` names, or else the sessions of a replica that is
    resized between the smallest and the largest set.

    `budget_s` covers everything. Slow models take up to about twice as long; if even batch 1 is too
    slow, it runs three times on each core set. A start or a run without a report for `patience_s`
    is given up and its replica killed. `seed` determines the inputs. The caller keeps the executor,
    which stays open. `check_rows`: also check whether rows influence each other (row_check.py).

    If no synthetic row runs, the record is a `guess`. Raises MeasuringError if the model cannot be
    opened or dies, and ValueError for invalid core sets.
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
    if not thorough:
        source = replace(source, warm_up_s=warm_up_s(budget_s, source))
    arena = Arena(_ARENA_LIMIT, name="slacktide-profile")
    work.meter.enter(0, f"starting on {_cores(counts[-1])}")
    try:
        # Start on the largest core set, where the sessions warm up fastest.
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
                    replica, other_sizes, rows, arena, warm, most_s=at_most, seed=seed, clock=clock
                )
                if replica.cpu.value is not None:
                    cpu_shares.append(replica.cpu.value)
                times.update({(size, len(core_set)): samples[size] for size in sizes})
            if check_rows and not guess:
                if source.decode or source.after:  # these hide small differences, or enlarge them
                    replica.close()
                    raw = replace(source, decode=None, after=None)
                    replica = TimedReplica(
                        executor, raw, sets[-1], device, arena, clock, patience_s
                    )
                    opened = await replica.ready()
                row_s, expands = next(iter(warm.values())), source.expands
                dependence = await find_dependence(
                    replica, opened, rows, shapes, arena, row_s, clock, expands=expands
                )
        finally:
            replica.close()
    finally:
        arena.close()
    work.meter.finish()
    if guess:
        most = max(1, interface.max_batch)
        table = LatencyTable.linear(0.2 * GUESS_S, 0.8 * GUESS_S, most, cores=counts, spread=2.0)
        record = ProfileRecord(table, shapes, device, threads=source.threads)
        seconds = clock() - begin
        return Measurement(record, interface, seconds, "", 0.0, opened.sessions, guess)
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
        # The share says nothing of functions, which may wait, or of accelerators, for which threads
        # wait.
        min(cpu_shares, default=None) if device == "cpu" and source.function is None else None,
    )
    seconds = clock() - begin
    most = max(1, interface.max_batch)
    needed_s = work.needed_s(most, len(sets)) if work.too_slow else 0.0
    untimed, sizes_s = _untimed(other_sizes, record, max(sizes), most)
    if untimed:
        needed_s = max(needed_s, sizes_s)
    return Measurement(
        record,
        interface,
        seconds,
        work.note,
        needed_s,
        opened.sessions,
        dependence=dependence,
        untimed=untimed,
        padded_outputs=opened.padded_outputs,
    )


def _untimed(
    sizes: Sequence[Sequence[OtherSize]], record: ProfileRecord, largest: int, most: int
) -> tuple[int, float]:
    """Return how many stated sizes lack a time, of a single row or of the `largest` batch, on some
    number of cores; and an approximate budget for timing all stated sizes in batches of up to
    `most` rows."""
    stated = [tries[0] for tries in sizes if tries[0].key]
    timed = {(point.size, point.rows, point.cores) for point in record.sizes}
    cores = record.table.cores
    count = sum(any((size.size, largest, n) not in timed for n in cores) for size in stated)
    runs = 2 * (FEWEST + 1) * (1 + most) * len(cores)  # sizes get half of the budget
    rows_long = sum(max(size.size, math.sqrt(size.size)) for size in stated)
    return count, runs * rows_long * record.table.expected(1, cores[0])


def warm_up_s(budget_s: float, source: ModelSource) -> float:
    """Seconds for warming up each session of a replica, if its measurement has `budget_s`."""
    return OPENING * budget_s / max(1, len(source.threads))


@dataclass(slots=True)
class _Work:
    """Decides which batch size runs next, and when to stop."""

    end: float
    budget_s: float
    thorough: bool
    clock: Callable[[], float]
    meter: _Meter
    note: str = ""
    too_slow: float = 0.0
    """Expected seconds of a row of the first batch size that takes too long; 0 if none does."""

    def needed_s(self, max_batch: int, core_counts: int) -> float:
        """Approximate budget for all batch sizes, which add up to twice the largest."""
        return self.too_slow * 2 * max_batch * (FEWEST + WARM_UPS) * core_counts / TABLE

    def _least_s(self, warm: Mapping[int, float], core_counts: int) -> float:
        """Seconds of the required runs of these sizes on all core counts."""
        runs = (
            seconds * (FEWEST if seconds > SLOW * self.budget_s else FEWEST + WARM_UPS)
            for seconds in warm.values()
        )
        return sum(runs) * core_counts

    async def warm_up(
        self, replica: TimedReplica, sizes: Sequence[int], core_counts: int
    ) -> dict[int, float]:
        """Return the seconds of each size's last warm-up run, for the sizes to measure, ascending;
        empty if the first size fails. Raises MeasuringError if the first size lacks memory."""
        warm: dict[int, float] = {}
        for size in sizes:
            if warm and not self.thorough:
                guess = 2 * next(reversed(warm.values()))
                if self._least_s({**warm, size: guess}, core_counts) > TABLE * self.budget_s:
                    self.note = f"a batch of {size} takes too long for {self.budget_s:g} s"
                    self.too_slow = guess / size
                    break
            self.meter.show(0.0, f"warming up, {_cores(replica.cores)}, batch {size}")
            try:
                for _ in range(WARM_UPS):
                    warm[size] = await replica.run(size)
                    if warm[size] > SLOW * self.budget_s:
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
        """Sample each size, at least `FEWEST` times, in this core count's share of the budget."""
        begin = self.clock()
        allowed = max(self.end - begin, 0.0) / core_counts_left
        slow = math.inf if self.thorough else SLOW * self.budget_s
        samples = {size: [seconds] if seconds > slow else [] for size, seconds in warm.items()}
        typical = dict(warm)
        while True:
            seconds_left = math.inf if self.thorough else begin + allowed - self.clock()
            size = _next_size(samples, typical, seconds_left)
            if size is None:
                return samples
            try:
                seconds = await replica.run(size)
            except BatchError as error:
                raise MeasuringError(f"a batch of {size} fails sometimes: {error}") from None
            samples[size].append(seconds)
            typical[size] += (seconds - typical[size]) / (len(samples[size]) + 1)
            done = sum(map(len, samples.values())) / (ENOUGH_SAMPLES * len(samples))
            used = 0.0 if self.thorough else (self.clock() - begin) / max(allowed, 1e-9)
            self.meter.show(max(done, used), f"{_cores(replica.cores)}, batch {size}")


def _next_size(
    samples: Mapping[int, list[float]], typical: Mapping[int, float], seconds_left: float
) -> int | None:
    """The size to run next with `seconds_left` to go; None if no run is worth it."""
    counts = {size: len(seconds) for size, seconds in samples.items()}
    fewest = min(counts, key=lambda size: counts[size])
    if counts[fewest] < FEWEST:
        return fewest
    open_sizes = [
        size for size in counts if counts[size] < ENOUGH_SAMPLES and typical[size] <= seconds_left
    ]
    return min(open_sizes, key=lambda size: counts[size] * math.sqrt(typical[size]), default=None)


class _Meter:
    """Reports progress over all core counts as one rising number, in steps of 1 %."""

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
    """Time the stages of a model cut at all ramps of a policy, and the whole model. Raises
    MeasuringError if it cannot be cut or opened."""
    arena = Arena(_ARENA_LIMIT, name="slacktide-stages")
    replica = TimedReplica(executor, source, cores, device, arena, time.perf_counter, patience_s)
    try:
        await replica.ready()
        return await replica.arrange(policy)
    finally:
        replica.close()
        arena.close()

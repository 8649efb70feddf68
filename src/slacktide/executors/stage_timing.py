"""Times a chain of stages and the whole model, between a worker's batches.

The model and its stages run in turn on synthetic rows. A run begins if earlier gaps between batches
suggest that it will end before the next batch. A batch that comes sooner stops the run within one
node. If a lane has no such gaps, single rows are timed while batches run, so rarely that fewer than
one answer in a hundred is delayed, and larger batches are not timed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from slacktide.domain import Leaving
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.staged import Stage, StageChain, StagedBatch

SIZES = (1, 4, 8)
"""Rows of the timed batches; sizes above the model's limit are skipped."""
MOST_RUNS, LEAST_RUNS, PATIENCE_S = 16, 4, 1.5
"""Maximum and minimum runs for each size, and seconds after which the minimum is enough."""
RETIME_ABOVE, RETIME_BELOW, RETIME_AFTER_S = 0.02, 0.5, 2.0
"""A chain is timed again after `RETIME_AFTER_S` seconds if the share of time that it adds exceeds
`RETIME_ABOVE` per ramp but is below `RETIME_BELOW` in total."""
ROOM, PAUSE_S = 1.2, 0.05
"""Minimum length of a gap as a multiple of the run, and seconds between checks for a gap."""
POLL_S = 0.002
"""Seconds between looks for a gap, for work that must be done."""
BESIDE_S = 4.0
"""Seconds between runs that do not give way to batches, if gaps are too short for one row."""
GIVE_UP_S = 60.0
"""Seconds after which larger batches are no longer timed."""
GAPS = 16
"""Number of recent gaps between batches to judge by; the shortest quarter is ignored."""

Ends = tuple[float, ...]
"""Seconds of a run up to the end of each stage."""


class LaneTurn:
    """A worker's lock, held while a batch runs (`with turn:`). Timed runs give way to batches."""

    def __init__(
        self, run_options: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`run_options`: see `SessionOpener.run_options`."""
        self._run_options = run_options
        self.lock = threading.Lock()
        """Held during work that must not run at the same time as a batch."""
        self.begun = 0
        """Number of batches that have begun."""
        self._clock = clock
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._idle_since: float | None = clock()  # None: a batch runs
        self._timed_options: Any = None  # options of a timed run that gives way

    def __enter__(self) -> None:
        self.begun += 1
        if self._idle_since is not None:
            self._gaps.append(self._clock() - self._idle_since)
        self._idle_since = None
        if (options := self._timed_options) is not None:
            options.terminate = True
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._idle_since = self._clock()
        self.lock.release()

    def room(self) -> float:
        """Expected seconds without a batch, from now on or from the end of the current one."""
        since = self._idle_since
        idle = 0.0 if since is None else self._clock() - since
        # A pause may last as long again as it already has.
        return max(self.typical_gap() - idle, idle)

    def typical_gap(self) -> float:
        """Seconds that at least three in four of the recent gaps between batches lasted; 0 at
        first."""
        gaps = sorted(self._gaps)
        return gaps[len(gaps) // 4] if gaps else 0.0

    def wait_for_room(self, seconds: float, *, until: float) -> None:
        """Return when a gap of `seconds` is expected, or at the time `until`."""
        while self._clock() < until and (self._idle_since is None or self.room() < seconds):
            time.sleep(POLL_S)

    def run_timed(self, run: Callable[[Any], Ends], seconds: float, *, beside: bool) -> Ends | None:
        """The result of `run`; None if no gap of `seconds` is expected, or a batch has stopped the
        run. `beside`: run to the end in any case, while batches run if necessary."""
        options = self._run_options()
        with self.lock:
            if not beside:
                if self.room() < seconds or self._idle_since is None:
                    return None  # a batch that waits for the lock goes first
                self._timed_options = options
        try:
            return run(options)
        except Exception:
            if not options.terminate:
                raise
            return None
        finally:
            self._timed_options = None


class ChainTimes(NamedTuple):
    """Times of a chain, as in `Arranged`."""

    rows: tuple[int, ...] = ()
    whole_s: tuple[float, ...] = ()
    stage_s: tuple[Ends, ...] = ()


UNKNOWN = ChainTimes()


class StageTimer:
    """Times one chain, until `stop` is set."""

    def __init__(
        self,
        turn: LaneTurn,
        stop: threading.Event,
        batch: Callable[[int], GatheredBatch],
        run_whole: Callable[[Any, GatheredBatch, Any], object],
        open_whole: Callable[[], Any],
    ) -> None:
        """`batch(n)` makes n synthetic rows. `run_whole` runs a session from `open_whole`."""
        self._turn, self._stop, self._batch = turn, stop, batch
        self._run_whole, self._open_whole = run_whole, open_whole
        self._whole: Any = None
        self._samples: dict[int, tuple[list[Ends], list[Ends]]] = {}
        """Runs of the whole model and of its stages, by number of rows."""
        self._row_s = 0.0
        """Wall time of the whole model's last run with a single row."""
        self._beside_at = time.perf_counter()
        self._has_waited = False
        """Whether runs were so rare that other work of the machine could finish in between."""

    def measure(
        self, chain: StageChain, threads: int, most: int, report: Callable[[ChainTimes], object]
    ) -> None:
        """Report the times of batches of at most `most` rows. Reports again if larger batches could
        only be timed later."""
        sizes, done = [rows for rows in SIZES if rows <= max(1, most)], 0
        give_up_at = time.perf_counter() + GIVE_UP_S
        while done < len(sizes):
            before = done
            while done < len(sizes):
                rows = sizes[done]
                has_room = rows == SIZES[0] or self._turn.room() >= ROOM * rows * self._row_s
                if not has_room or not self._time(chain, threads, rows):
                    break
                done += 1
            if self._stop.is_set():
                return
            if done > before:
                self._look_again(chain, threads, sizes[:done])
                report(self._times(sizes[:done]))
            self._whole = None  # it doubles the weights in memory
            if time.perf_counter() > give_up_at or self._stop.wait(PAUSE_S):
                return
        self._whole = None

    def _look_again(self, chain: StageChain, threads: int, sizes: Sequence[int]) -> None:
        """Time an expensive chain again, because other work on the machine may have ended."""
        _, whole_s, stage_s = self._times(sizes)
        added = [
            ends[-1] / max(whole, 1e-9) - 1.0 for ends, whole in zip(stage_s, whole_s, strict=True)
        ]
        share = sum(added) / len(added)
        if not self._has_waited and RETIME_ABOVE * len(chain.ramps) < share < RETIME_BELOW:
            self._stop.wait(RETIME_AFTER_S)
            for rows in sizes:
                if not self._time(chain, threads, rows):
                    return

    def _times(self, sizes: Sequence[int]) -> ChainTimes:
        """The minimum times of each kind of run: other work on the machine only adds time, and a
        few per cent can decide about a ramp."""
        whole, stages = (
            [tuple(map(min, zip(*self._samples[rows][kind], strict=True))) for rows in sizes]
            for kind in (0, 1)
        )
        return ChainTimes(tuple(sizes), tuple([seconds for (seconds,) in whole]), tuple(stages))

    def _time(self, chain: StageChain, threads: int, rows: int) -> bool:
        """Add samples of both kinds of run, in turn, until there are enough or time is up. Returns
        False if a run was impossible."""
        if self._whole is None:
            self._whole = self._open_whole()
        batch = self._batch(rows)
        # CPU time of a single thread is not affected by other work.
        clock = time.thread_time if threads == 1 else time.perf_counter
        whole = partial(self._time_whole, batch, clock)
        staged = partial(_time_stages, chain.stages(threads), chain, batch, clock)
        samples: tuple[list[Ends], list[Ends]] = ([], [])
        # Run each twice: the second run finds its weights in the caches, as if it ran alone.
        runs = [pair for pair in zip((whole, staged), samples, strict=True) for _ in range(2)]
        end = time.perf_counter() + PATIENCE_S
        while (count := min(map(len, samples))) < MOST_RUNS:
            if count >= LEAST_RUNS and time.perf_counter() > end:
                break
            for run, times in runs:
                ends = self._once(run, rows)
                if ends is None:
                    return False
                times.append(ends)
        whole_samples, stage_samples = self._samples.setdefault(rows, ([], []))
        whole_samples += samples[0]
        stage_samples += samples[1]
        return True

    def _once(self, run: Callable[[Any], Ends], rows: int) -> Ends | None:
        """One run; None if it was impossible, or timing has been stopped."""
        needed, give_up_at = ROOM * rows * self._row_s, time.perf_counter() + BESIDE_S
        while not self._stop.is_set():
            now = time.perf_counter()
            beside = rows == SIZES[0] and now > self._beside_at + BESIDE_S
            if beside:
                self._beside_at = now
            ends = self._turn.run_timed(run, needed, beside=beside)
            if ends is not None:
                self._has_waited = self._has_waited or beside
                return ends
            if rows != SIZES[0] and now > give_up_at:
                return None
            self._stop.wait(PAUSE_S)
        return None

    def _time_whole(self, batch: GatheredBatch, clock: Callable[[], float], options: Any) -> Ends:
        begin, at = clock(), time.perf_counter()
        self._run_whole(self._whole, batch, options)
        if sum(batch.rows) == SIZES[0]:
            self._row_s = time.perf_counter() - at
        return (clock() - begin,)


def _time_stages(
    stages: Sequence[Stage],
    chain: StageChain,
    batch: GatheredBatch,
    clock: Callable[[], float],
    options: Any,
) -> Ends:
    begin = clock()
    run = StagedBatch(chain, batch._replace(begin=begin), {}, Leaving.NONE, (), clock=clock)
    list(run.run(stages, options))
    end = clock() - begin
    report = run.report()
    return (*(() if report is None else report.stage_s), end)

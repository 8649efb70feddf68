"""What a chain of stages takes beside the model whole, measured between a worker's batches.

The model and its stages run by turns, on rows that are made up. A run is begun where the time to
the next batch, judged by the gaps before, has room for it; a batch that comes all the same stops
it, within a node. Where a lane has no such gaps, single rows are timed beside batches, so rarely
that not one answer in a hundred waits for it, and larger batches are not timed at all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from slacktide.domain import Leaving
from slacktide.executors.onnx_runtime import load_onnxruntime
from slacktide.executors.session import GatheredBatch
from slacktide.executors.staged import Stage, StageChain, StagedBatch

SIZES = (1, 4, 8)
"""Rows of the batches that are timed, as far as the model takes them."""
MOST_RUNS, LEAST_RUNS, PATIENCE_S = 16, 4, 1.5
"""For each size: runs of the model and of its stages, and seconds after which the least will do."""
DEAR, CLEAR, AGAIN_S = 0.02, 0.5, 2.0
"""Share of a pass for each ramp above which a chain is timed again, and in all above which it need
not be; seconds to wait for that."""
ROOM, PAUSE_S = 1.2, 0.05
"""How much longer than a run a gap must be, and seconds from one look for a gap to the next."""
BESIDE_S = 4.0
"""Seconds from one run that does not give way to the next, where gaps are too short for one row."""
GIVE_UP_S = 60.0
"""Seconds after which larger batches are no longer waited for."""
GAPS = 16
"""So many of the last gaps between batches are looked at; all but the shortest quarter count."""

Ends = tuple[float, ...]
"""Seconds of a run up to each of its ends."""


class LaneTurn:
    """Whose turn it is in a worker: held while a batch runs (`with turn:`); what is only timed
    gives way to that."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.lock = threading.Lock()
        """Held by whatever must not be done beside a batch."""
        self._clock = clock
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._idle_since: float | None = clock()  # None: a batch runs
        self._timed: Any = None  # options of the run that is timed, while it gives way

    def __enter__(self) -> None:
        if self._idle_since is not None:
            self._gaps.append(self._clock() - self._idle_since)
        self._idle_since = None
        timed = self._timed
        if timed is not None:
            timed.terminate = True
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._idle_since = self._clock()
        self.lock.release()

    def room(self) -> float:
        """Seconds that no batch is expected to come for, from now on, or from the end of the one
        that runs."""
        since, gaps = self._idle_since, sorted(self._gaps)
        idle = 0.0 if since is None else self._clock() - since
        typical = gaps[len(gaps) // 4] if gaps else 0.0
        return max(typical - idle, idle)  # a pause may last as long as it has lasted

    def alone(self, run: Callable[[Any], Ends], seconds: float, *, beside: bool) -> Ends | None:
        """What `run` gives; None where there is no room for its `seconds`, or a batch has stopped
        it. `beside`: it begins all the same, and is not stopped."""
        options = load_onnxruntime().RunOptions()
        with self.lock:
            if not beside:
                if self.room() < seconds or self._idle_since is None:
                    return None  # where a batch waits for the lock, it comes now
                self._timed = options
        try:
            return run(options)
        except Exception:
            if not options.terminate:
                raise
            return None
        finally:
            self._timed = None


class ChainTimes(NamedTuple):
    """As `Arranged` has them."""

    rows: tuple[int, ...] = ()
    whole_s: tuple[float, ...] = ()
    stage_s: tuple[Ends, ...] = ()


UNKNOWN = ChainTimes()


class StageTimer:
    """Times one chain. `stop` ends it, whatever it is at."""

    def __init__(
        self,
        turn: LaneTurn,
        stop: threading.Event,
        batch: Callable[[int], GatheredBatch],
        run_whole: Callable[[Any, GatheredBatch, Any], object],
        open_whole: Callable[[], Any],
    ) -> None:
        """`batch` makes up so many rows; `run_whole` takes the session that `open_whole` opens."""
        self._turn, self._stop, self._batch = turn, stop, batch
        self._run_whole, self._open_whole = run_whole, open_whole
        self._whole: Any = None
        self._found: dict[int, tuple[list[Ends], list[Ends]]] = {}
        """By rows: seconds of runs of the whole model, and of its stages."""
        self._row_s = 0.0
        """What the whole model last took for a single row, by the clock on the wall."""
        self._beside_at = time.perf_counter()
        self._spread = False
        """Whether runs were so rare that other work on the machine came and went between them."""

    def measure(
        self, chain: StageChain, threads: int, most: int, report: Callable[[ChainTimes], object]
    ) -> None:
        """Report times, and once more where larger batches could be timed only later. Batches of
        at most `most` rows."""
        sizes, done = [rows for rows in SIZES if rows <= max(1, most)], 0
        give_up_at = time.perf_counter() + GIVE_UP_S
        while done < len(sizes):
            before = done
            while done < len(sizes) and self._has_room(sizes[done]):
                if not self._time(chain, threads, sizes[done]):
                    break
                done += 1
            if self._stop.is_set():
                return
            if done > before:
                self._look_again(chain, threads, sizes[:done])
                report(self._times(sizes[:done]))
            self._whole = None  # twice the weights, while nothing is timed
            if time.perf_counter() > give_up_at or self._stop.wait(PAUSE_S):
                return
        self._whole = None

    def _has_room(self, rows: int) -> bool:
        return rows == SIZES[0] or self._turn.room() >= ROOM * rows * self._row_s

    def _look_again(self, chain: StageChain, threads: int, sizes: Sequence[int]) -> None:
        """What seems dear is timed again, when other work on the machine may have ended."""
        _, whole_s, stage_s = self._times(sizes)
        added = [
            ends[-1] / max(whole, 1e-9) - 1.0 for ends, whole in zip(stage_s, whole_s, strict=True)
        ]
        if not self._spread and DEAR * len(chain.ramps) < sum(added) / len(added) < CLEAR:
            self._stop.wait(AGAIN_S)
            for rows in sizes:
                if not self._time(chain, threads, rows):
                    return

    def _times(self, sizes: Sequence[int]) -> ChainTimes:
        """The least: whatever else runs on the machine can only add to it, and ramps are judged by
        a few per cent."""
        whole, stages = (
            [tuple(map(min, zip(*self._found[rows][kind], strict=True))) for rows in sizes]
            for kind in (0, 1)
        )
        return ChainTimes(tuple(sizes), tuple([seconds for (seconds,) in whole]), tuple(stages))

    def _time(self, chain: StageChain, threads: int, rows: int) -> bool:
        """Add times of each kind of run, by turns, until there are enough or it has taken too long;
        False where there are none to be had."""
        if self._whole is None:
            self._whole = self._open_whole()
        batch = self._batch(rows)
        # On one thread its own time counts: what runs beside it is no part of that.
        clock = time.thread_time if threads == 1 else time.perf_counter
        whole = partial(self._time_whole, batch, clock)
        staged = partial(_time_stages, chain.stages(threads), chain, batch, clock)
        mine: tuple[list[Ends], list[Ends]] = ([], [])
        # Twice each: the second has its weights in the caches, as where it runs alone.
        turn = [pair for pair in zip((whole, staged), mine, strict=True) for _ in range(2)]
        end = time.perf_counter() + PATIENCE_S
        while (timed := min(map(len, mine))) < MOST_RUNS:
            if timed >= LEAST_RUNS and time.perf_counter() > end:
                break
            for run, times in turn:
                ends = self._once(run, rows)
                if ends is None:
                    return False
                times.append(ends)
        for every, more in zip(self._found.setdefault(rows, ([], [])), mine, strict=True):
            every.extend(more)
        return True

    def _once(self, run: Callable[[Any], Ends], rows: int) -> Ends | None:
        """One run; None where it is not to be had, or wanted no longer."""
        needed, give_up_at = ROOM * rows * self._row_s, time.perf_counter() + BESIDE_S
        while not self._stop.is_set():
            now = time.perf_counter()
            beside = rows == SIZES[0] and now > self._beside_at + BESIDE_S
            if beside:
                self._beside_at = now
            ends = self._turn.alone(run, needed, beside=beside)
            if ends is not None:
                self._spread = self._spread or beside
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
    run = StagedBatch(chain, batch._replace(began=begin), {}, Leaving.NONE, (), clock=clock)
    list(run.run(stages, options))
    end = clock() - begin
    said = run.report()
    return (*(() if said is None else said.stage_s), end)

"""`IdleFeatures`: reports the features of batches after their answers, while the lane is idle.

Pooling at every position takes a few per cent of a pass. It would delay a tenth of all answers, and
so raise the 99th percentile. Therefore the stages run once more on a copy of the batch's inputs,
and give way to the next batch. If gaps are too short for that, the batch itself reports features.
The server assumes that features belong to the last batch, so none are sent once another has begun.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Leaving
from slacktide.executors.exit_frames import encode_features
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.remembering import RowMemory
from slacktide.executors.stage_timing import PAUSE_S, ROOM, Ends, LaneTurn
from slacktide.executors.staged import Stage, StageChain, StagedBatch


class _WaitingBatch(NamedTuple):
    """A batch whose features are still to be reported."""

    chain: StageChain
    stages: Sequence[Stage]
    batch: GatheredBatch
    """With copies of the inputs."""
    seconds: float
    """Time that its pass took."""
    memory: RowMemory | None
    """Remembered answers of its members."""
    number: int
    """Its number among the lane's batches (`LaneTurn.begun`)."""


class IdleFeatures:
    """Reports features for one worker. The thread that runs batches calls `has_room` and `add`."""

    def __init__(self, turn: LaneTurn, send: Callable[[bytes], object]) -> None:
        """`send` takes frames. It is called on another thread, but not while a batch runs."""
        self._turn, self._send = turn, send
        self._waiting: queue.SimpleQueue[_WaitingBatch] = queue.SimpleQueue()
        self._pass_s = inf
        """Wall time of the last pass."""
        self._is_busy = False
        self._was_dropped = False
        """Whether the last batch never found a gap."""
        self._thread: threading.Thread | None = None

    def has_room(self) -> bool:
        """Whether the batch that begins now can report its features later. After a batch that found
        no gap, the next batch cannot."""
        was_dropped, self._was_dropped = self._was_dropped, False
        return not (self._is_busy or was_dropped or self._turn.typical_gap() < ROOM * self._pass_s)

    def passed(self, seconds: float) -> None:
        """Note how long a pass through all stages took."""
        self._pass_s = seconds

    def add(
        self,
        chain: StageChain,
        stages: Sequence[Stage],
        batch: GatheredBatch,
        memory: RowMemory | None = None,
    ) -> None:
        """Report the features of a batch that has run, in a gap after it."""
        feeds: Mapping[str, NDArray[Any]] = batch.feeds
        copies = {name: np.array(array) for name, array in feeds.items()}
        self._is_busy = True
        copied = batch._replace(feeds=copies)
        number = self._turn.begun
        self._waiting.put(_WaitingBatch(chain, stages, copied, self._pass_s, memory, number))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="features", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            waiting = self._waiting.get()
            while not (has_run := self._attempt(waiting)) and self._is_last(waiting):
                time.sleep(PAUSE_S)
            self._was_dropped = not has_run
            del waiting  # or its inputs would stay until the next batch
            self._is_busy = False

    def _is_last(self, waiting: _WaitingBatch) -> bool:
        """Whether no other batch has begun since."""
        return self._turn.begun == waiting.number

    def _attempt(self, waiting: _WaitingBatch) -> bool:
        """Run a batch in a gap. Returns False if there was none, or it ended too soon."""

        def run(options: Any) -> Ends:
            if not self._is_last(waiting):  # it ran while this thread waited for the lane
                return ()
            again = StagedBatch(
                *(waiting.chain, waiting.batch, {}, Leaving.NONE, ()),
                sampled=True,
                memory=waiting.memory,
            )
            for _ in again.run(waiting.stages, options):
                pass
            if (features := again.features()) is not None:
                self._send(encode_features(features))
            return ()

        return self._turn.run_timed(run, ROOM * waiting.seconds, beside=False) is not None

"""`RampLearner`: learns ramps from features of live batches, on a thread beside the event loop.

The thread adds rows to the running sums of a pool (`exits/training.py`). The thread has the loop's
niceness: a nicer thread could hold the interpreter's lock without running, while the loop waits.
The thread trains when `exits/learning.py` says so, publishes the first ramps, and later a new
revision each time that ramps have become clearly better.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import NEVER, PoolId
from slacktide.executors.ports import FeaturesSeen
from slacktide.exits.errors import ExitError
from slacktide.exits.learning import FIRST_TRAINING, RampLearning
from slacktide.exits.manifest import ExitManifest
from slacktide.exits.session_memory import MEMORY
from slacktide.exits.training import PooledRows, judged_rows
from slacktide.models.exit_files import RARE, find_ramps, find_rare, manifest_stamp, save_ramps
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.versions import LoadedPool
from slacktide.planning.exits import RampFacts, RampsJudged, RampsLearnt, RampsRefused

log = logging.getLogger("slacktide.exits")

T = TypeVar("T")

PAUSE = 20.0
"""Pause after a training as a multiple of its duration, which may be a minute (wide networks)."""
MOST_BEHIND = 64
"""Maximum number of reports waiting for the thread. Others are dropped: any rows will do."""


@dataclass(slots=True, eq=False)
class _Pool:
    """Learning state of a pool. A working thread owns all fields but `waiting` and `busy`."""

    loaded: LoadedPool
    definition: ModelDefinition
    folder: Path
    clock: Callable[[], float]
    model_sha256: str = ""
    manifest: ExitManifest | None = None
    rare: PooledRows | None = None
    """Rows of rare classes that the operator has supplied."""
    stamp: tuple[int, int] | None = None
    """Stamp of the manifest when this learner last read or wrote it."""
    learning: RampLearning | None = None
    paused_until: float = -math.inf
    hindrance: str = ""
    """Why the last training gave no ramps."""
    judgements: list[RampsJudged] = field(default_factory=list)
    """Judgements of the ramps on the latest reports, not yet posted."""
    waiting: deque[FeaturesSeen] = field(default_factory=deque)
    busy: bool = False

    @property
    def refusal(self) -> str:
        """Why there are no ramps yet."""
        rows, needed = 0, FIRST_TRAINING
        if self.learning is not None:
            rows, needed = self.learning.trainer.all_rows, self.learning.next_training
        return self.hindrance or f"ramps need {needed} rows, have {rows}"

    def find(self) -> None:
        """Read the stored ramps. Raises ExitError if they are unusable."""
        self.stamp = manifest_stamp(self.folder)
        self.model_sha256 = model_hash(self.definition)
        self.rare = find_rare(self.folder, self.model_sha256)
        self.manifest = find_ramps(self.definition, self.folder)
        self._judge_rare()

    def learn(self, reports: list[FeaturesSeen]) -> bool:
        """Learn from reports. Returns whether ramps changed. Raises ExitError if the pool cannot
        have ramps."""
        better = False
        for report in reports:
            self._judge(report)
            if self.learning is None:
                self.learning = RampLearning(report.tensors, report.costs)
            trainer = self.learning.trainer
            features = [_rows(part, report.rows) for part in report.features]
            trainer.add(features, _rows(report.logits, report.rows))
            if self.rare is not None and trainer.supplied is None:
                fits = trainer.fits(self.rare)  # the positions may have changed since
                trainer.supplied = self.rare.halves_by_class()[0] if fits else None
            if self.learning.is_due and self.clock() >= self.paused_until:
                begin = self.clock()
                better = self._train(self.learning, report) or better
                self.paused_until = begin + (1.0 + PAUSE) * (self.clock() - begin)
        return better

    def _judge(self, report: FeaturesSeen) -> None:
        """Judge the ramps in force on rows that they were not trained on."""
        ramps = () if self.manifest is None else self.manifest.ramps
        if self.manifest is None or report.tensors != tuple([ramp.tensor for ramp in ramps]):
            return
        features = tuple([_rows(part, report.rows) for part in report.features])
        rows = PooledRows(features, _rows(report.logits, report.rows))
        memory = _rows(report.memory, report.rows) if report.memory else None
        judged = self._judged(rows, memory)
        self.judgements.append(replace(judged, applications=report.applications))

    @property
    def remembers(self) -> bool:
        """Whether a ramp in front of the learnt ones gives remembered answers."""
        return self.loaded.exits is not None and self.loaded.exits.sessions is not None

    def _judged(self, rows: PooledRows, memory: NDArray[np.float32] | None = None) -> RampsJudged:
        """Judge the ramps in force on these rows. `memory`: uncertainty and agreement of
        remembered answers, [rows, 2]; None: there are none."""
        assert self.manifest is not None
        answers = rows.logits.argmax(axis=1)
        settings = self.definition.settings.exits
        whole = () if settings is None else settings.class_numbers(self.definition.labels)
        uncertainties, agreements = [], []
        if self.remembers:
            judged_memory = np.array([[NEVER, 1.0]] * len(answers)) if memory is None else memory
            uncertainties.append(judged_memory[:, 0])
            agreements.append(judged_memory[:, 1] > 0.0)
        for ramp, part in zip(self.manifest.ramps, rows.features, strict=True):
            logits = ramp.logits(part)
            judged = judged_rows(logits / ramp.temperature, answers)
            never = np.isin(logits.argmax(axis=1), whole)
            uncertainties.append(np.where(never, NEVER, np.nan_to_num(judged.uncertainty, nan=1.0)))
            agreements.append(judged.agrees)
        columns = (np.array(uncertainties).T.tolist(), np.array(agreements).T.tolist())
        unsure, agrees = (tuple(map(tuple, column)) for column in columns)
        revision = self.manifest.revision
        return RampsJudged(self.loaded.id, revision, unsure, agrees, tuple(answers.tolist()))

    def _judge_rare(self) -> None:
        """Judge the ramps in force on supplied rows that they were not trained on."""
        manifest, rare = self.manifest, self.rare
        if manifest is None or rare is None:
            return
        sizes = [part.shape[1] for part in rare.features]
        if sizes != [len(ramp.weights) for ramp in manifest.ramps]:
            raise ExitError(f"{RARE}: the model has other positions now; supply the rows again")
        rows = rare.halves_by_class()[1]
        if len(rows):
            self.judgements.append(replace(self._judged(rows), supplied=True))

    def _train(self, learning: RampLearning, report: FeaturesSeen) -> bool:
        before = self.manifest
        try:
            ramps = learning.train(() if before is None else before.ramps)
        except ExitError as error:
            self.hindrance = str(error)
            return False
        self.hindrance = ""
        if ramps is None:
            return False
        revision = 1 if before is None else before.revision + 1
        rows = learning.trainer.rows
        manifest = ExitManifest(self.model_sha256, revision, rows, "traffic", report.outputs, ramps)
        if manifest_stamp(self.folder) not in (None, self.stamp):
            raise ExitError("another program wrote ramps; reload the model to use them")
        save_ramps(self.definition, self.folder, manifest)
        self.manifest, self.stamp = manifest, manifest_stamp(self.folder)
        self._judge_rare()
        return True


class RampLearner:
    """Learns ramps of all pools that state early exits. All methods belong to the event loop."""

    def __init__(
        self,
        post: Callable[[RampsLearnt | RampsRefused | RampsJudged], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`post` takes events for planners."""
        self._post = post
        self._clock = clock
        self._pools: dict[PoolId, _Pool] = {}
        self._thread = ThreadPoolExecutor(1, "exits")
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, loaded: LoadedPool) -> None:
        """Publish the stored ramps of a new pool and start to learn; a previous load with the same
        folder stops learning. Does not raise for unusable files."""
        if loaded.source.exits is None:
            return
        if exits := loaded.source.own_exits:  # built-in exits: nothing to learn
            names = tuple(exit_.quality for exit_ in exits)
            if loaded.exits is not None:
                loaded.exits.learnt(1, names, exits[0].outputs)
            costs = [
                at / (len(exits) + 1) for at in range(1, len(exits) + 1)
            ]  # until they are measured
            facts = zip(names, costs, strict=True)
            ramps = tuple(RampFacts(at, name, 1.0, cost) for at, (name, cost) in enumerate(facts))
            self._post(RampsLearnt(loaded.id, 1, ramps))
            return
        for id, before in list(self._pools.items()):
            if before.folder == loaded.source.exits.folder:
                self.forget(id)
        pool = _Pool(loaded, loaded.definition, loaded.source.exits.folder, self._clock)
        try:
            await self._on_thread(pool.find)
        except (ExitError, RepositoryError, OSError) as error:
            log.warning("%s: stored ramps are ignored: %s", loaded.version.name, error)
        self._pools[loaded.id] = pool
        if pool.manifest is not None:
            self._publish(pool, pool.manifest)
        self._post_judgements(pool)

    def _post_judgements(self, pool: _Pool) -> None:
        for judged in pool.judgements:
            self._post(judged)
        pool.judgements.clear()

    def forget(self, pool: PoolId) -> None:
        """Stop learning for a pool."""
        self._pools.pop(pool, None)

    def add_features(self, id: PoolId, report: FeaturesSeen) -> None:
        """Hand a batch's features to the thread."""
        pool = self._pools.get(id)
        if pool is None or len(pool.waiting) >= MOST_BEHIND:
            return
        pool.waiting.append(report)
        if not pool.busy:
            pool.busy = True
            task = asyncio.get_running_loop().create_task(self._learn(pool))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop learning for all pools."""
        self._pools.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _learn(self, pool: _Pool) -> None:
        name, loaded = pool.loaded.version.name, pool.loaded
        while pool.waiting and self._pools.get(loaded.id) is pool:
            reports = list(pool.waiting)
            pool.waiting.clear()
            before = pool.hindrance
            try:
                better = await self._on_thread(lambda: pool.learn(reports))  # noqa: B023  (awaited here)
            except Exception as error:  # the model serves without ramps
                if self._pools.get(loaded.id) is pool:
                    self._refuse(pool, error)
                return
            if self._pools.get(loaded.id) is not pool:
                return
            if better and pool.manifest is not None:
                self._publish(pool, pool.manifest)
            elif pool.manifest is None and loaded.exits is not None:
                loaded.exits.refusal = pool.refusal
                if pool.hindrance not in (before, ""):
                    log.warning("%s: no early exits yet: %s", name, pool.hindrance)
            self._post_judgements(pool)  # judgements of earlier ramps are void
        pool.busy = False

    def _publish(self, pool: _Pool, manifest: ExitManifest) -> None:
        loaded = pool.loaded
        front = (MEMORY,) if pool.remembers else ()
        if loaded.exits is not None:
            names = (*front, *manifest.positions)
            loaded.exits.learnt(manifest.revision, names, manifest.outputs)
        best = max(ramp.agreement for ramp in manifest.ramps)
        log.info(
            "%s: ramps at %d positions, revision %d, learnt from %d rows of %s; the "
            "best agrees with the model on %.1f %%",
            *(loaded.version.name, len(manifest.ramps), manifest.revision, manifest.rows),
            *(manifest.source, best * 100),
        )
        facts = tuple(
            RampFacts(ramp.position + len(front), ramp.tensor, ramp.agreement, ramp.cost)
            for ramp in manifest.ramps
        )
        if front:
            facts = (replace(facts[0], position=0, name=MEMORY), *facts)
        self._post(RampsLearnt(loaded.id, manifest.revision, facts, pool.remembers))

    def _refuse(self, pool: _Pool, error: Exception) -> None:
        """Stop learning for a pool. Existing ramps stay."""
        expected = isinstance(error, ExitError)
        reason = str(error) if expected else f"unexpected {type(error).__name__}"
        name, traceback = pool.loaded.version.name, None if expected else error
        log.error("%s: stopped learning early exits: %s", name, reason, exc_info=traceback)
        del self._pools[pool.loaded.id]
        if pool.manifest is None:
            if pool.loaded.exits is not None:
                pool.loaded.exits.refusal = reason
            self._post(RampsRefused(pool.loaded.id, reason))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _rows(data: bytes, rows: int) -> NDArray[np.float32]:
    return np.frombuffer(data, np.float32).reshape(rows, -1)

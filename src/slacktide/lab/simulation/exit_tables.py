"""`ExitTable`: answers of every ramp of a model to every input of a stream, and batch times.

A table is measured once with the real model (`slacktide reproduce apparate`) and then replaces the
worker in virtual time. The file is an .npz without pickles. Its arrays, for n inputs in stream
order, p positions from front to end and b batch sizes:

- `layout` (int): 1; `title` (text); `rate` (float): inputs per second, 0 if the stream states no
  rate; `positions` (p texts): names of the tensors
- `uncertainty` (n × p): 1 − top probability of the ramp at that position; `agrees` (n × p, bool):
  whether the ramp's answer equals the model's
- `agreement` (p): share of rows outside the ramp's training set on which the ramp agreed
- `sizes` (b ints, rising from 1); `whole` (b): seconds of the unsplit model; `before` (b × p): the
  part of `whole` in front of each position; `ramp` (b × p): seconds that an active ramp adds
- optional, for remembered answers: `early` (n × f, floats): pooled features of the first position;
  `answers` (n, ints from 0): the model's class; `doubt` (n): 1 − its probability; `session`
  (n, ints from 0): the session that each input belongs to, if there are several
- optional: `revisions` (n, ints from 1, never falling): revision of the ramps' weights
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import NEVER, Batch, ExitPolicy, ExitReport, PoolId, Replica, is_judged
from slacktide.exits import MEMORY, SessionMemory, reuse_uncertainty
from slacktide.exits.archives import read_npz
from slacktide.lab.simulation.exit_courses import Chain, ExitCourse, played
from slacktide.lab.simulation.items import SimulationError
from slacktide.planning.exits import (
    ExitsArranged,
    RampFacts,
    RampsJudged,
    RampsLearnt,
    StatedExits,
)
from slacktide.profiles import LatencyTable

LAYOUT = 1
MAX_BYTES = 1 << 30
"""Largest size of an unpacked file, in bytes."""
MOST_POSITIONS, MOST_SIZES = 256, 64
LARGEST = 1e9
"""Largest number in a table."""

Floats = NDArray[np.floating[Any]]

_OPTIONAL = ("early", "doubt", "answers", "session", "revisions")
_BY_INPUT = ("uncertainty", "agrees", *_OPTIONAL)


class ExitTableError(SimulationError):
    """A file that is not an exit table, or contradicts itself; the text says how."""


@dataclass(frozen=True, eq=False)
class ExitTable:
    """The arrays listed at the top of the module. Raises ExitTableError if they disagree."""

    title: str
    rate: float
    positions: tuple[str, ...]
    uncertainty: Floats
    agrees: NDArray[np.bool_]
    agreement: Floats
    sizes: NDArray[np.int64]
    whole: Floats
    before: Floats
    ramp: Floats
    early: Floats | None = None
    doubt: Floats | None = None
    answers: NDArray[np.integer[Any]] | None = None
    session: NDArray[np.integer[Any]] | None = None
    revisions: NDArray[np.integer[Any]] | None = None

    def __post_init__(self) -> None:
        n, p, b = len(self.uncertainty), len(self.positions), len(self.sizes)
        if not (n and 0 < p <= MOST_POSITIONS and 0 < b <= MOST_SIZES):
            limits = f"1 to {MOST_POSITIONS} positions and 1 to {MOST_SIZES} batch sizes"
            counts = f"{n} inputs, {p} positions and {b} batch sizes"
            raise ExitTableError(f"exit table: expected inputs, {limits}, got {counts}")
        shapes = {"uncertainty": (n, p), "agrees": (n, p), "agreement": (p,), "sizes": (b,)}
        shapes |= {"whole": (b,), "before": (b, p), "ramp": (b, p), "rate": ()}
        shapes |= {name: (n,) for name in _OPTIONAL[1:] if getattr(self, name) is not None}
        if self.early is not None:
            self._check_early(self.early)
        for name, shape in shapes.items():
            values = np.asarray(getattr(self, name))
            if values.shape != shape:
                raise _refuse(name, f"shape {shape}, got {values.shape}")
            if not ((values >= 0).all() and (values <= LARGEST).all()):
                raise _refuse(name, f"numbers from 0 to {LARGEST:g}")
        for name in ("uncertainty", "agreement"):
            if (getattr(self, name) > 1.0).any():
                raise _refuse(name, "shares of at most 1")
        if self.revisions is not None and (np.diff(self.revisions, prepend=1) < 0).any():
            raise _refuse("revisions", "numbers from 1 that never fall")
        if self.sizes[0] != 1 or (np.diff(self.sizes) <= 0).any():
            raise _refuse("sizes", "batch sizes that rise from 1")
        if (np.diff(self.before, axis=1, append=self.whole[:, None]) < 0.0).any():
            raise _refuse("before", "times that rise from position to position, up to 'whole'")
        if not (self.whole > 0.0).all() or (np.diff(self.whole) < 0.0).any():
            raise _refuse("whole", "positive times that rise with the batch")

    def _check_early(self, early: Floats) -> None:
        if self.answers is None or self.doubt is None:
            raise _refuse("early", "'answers' and 'doubt' beside it")
        if (self.doubt > 1.0).any():
            raise _refuse("doubt", "shares of at most 1")
        if early.ndim != 2 or len(early) != len(self) or not np.isfinite(early).all():
            raise _refuse("early", f"finite numbers of shape ({len(self)}, features)")

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self.uncertainty)

    def part(self, start: int, end: int) -> ExitTable:
        """Return a table with only the inputs from `start` to `end`."""
        arrays = {name: getattr(self, name) for name in _BY_INPUT}
        parts = {name: array[start:end] for name, array in arrays.items() if array is not None}
        return replace(self, **parts)

    @cached_property
    def _frames(self) -> tuple[int, list[int], list[int]]:
        """Number of sessions; session and number within it of each input, both from 1."""
        of = np.zeros(len(self), np.int64) if self.session is None else self.session
        names, numbers = np.unique(of, return_inverse=True)
        order = np.argsort(numbers, kind="stable")
        first = np.searchsorted(numbers[order], numbers[order])
        frames = np.empty(len(self), np.int64)
        frames[order] = np.arange(len(self)) - first
        return len(names), (numbers + 1).tolist(), (frames + 1).tolist()

    def frame(self, id: int) -> tuple[int, int]:
        """Return `Request.session` and `Request.frame` of a request for input `id` mod n."""
        repeat, place = divmod(id, len(self))
        count, sessions, frames = self._frames
        return repeat * count + sessions[place], frames[place]

    @property
    def times(self) -> LatencyTable:
        """Batch times of the unsplit model, stated for 1 core, whatever the number of cores in the
        measurement."""
        seconds = [[whole_s] for whole_s in self.whole.tolist()]
        return LatencyTable.from_grid(tuple(self.sizes.tolist()), (1,), seconds, seconds)

    def seconds(self, of: Floats, rows: int) -> Floats:
        """Return `of` (`whole`, `before` or `ramp`) for a batch of `rows`: interpolated linearly
        between sizes, in proportion to the rows beyond the last size."""
        last = int(self.sizes[-1])
        if rows >= last:
            return np.asarray(of[-1] * (rows / last))
        after = int(np.searchsorted(self.sizes, rows, side="right"))
        low, high = self.sizes[after - 1], self.sizes[after]
        part = (rows - low) / (high - low)
        return np.asarray(of[after - 1] * (1.0 - part) + of[after] * part)

    @cached_property
    def facts(self) -> tuple[RampFacts, ...]:
        """The ramps, in the form in which planners get them."""
        cost = (self.before[0] / self.whole[0]).tolist()
        columns = zip(self.positions, self.agreement.tolist(), cost, strict=True)
        return tuple(RampFacts(number, *column) for number, column in enumerate(columns))

    def save(self, path: Path) -> None:
        """Write the table to `path` atomically. Raises OSError."""
        arrays = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, layout=np.int64(LAYOUT), **arrays)
        partial.replace(path)


def read_exit_table(path: Path) -> ExitTable:
    """Return the table in a file. Raises OSError; ExitTableError if it is not an exit table."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        columns = read_npz(data, most_bytes=MAX_BYTES, where=path.name)
        layout = int(columns.pop("layout"))
        if layout != LAYOUT:
            raise ExitTableError(f"exit table {path.name}: expected layout {LAYOUT}, got {layout}")
        kinds = {"agrees": "b", "title": "U", "positions": "U"}
        kinds |= dict.fromkeys(("sizes", *_OPTIONAL[2:]), "iu")
        for attribute in fields(ExitTable):
            if attribute.name in _OPTIONAL and attribute.name not in columns:
                continue
            if columns[attribute.name].dtype.kind not in kinds.get(attribute.name, "f"):
                raise _refuse(
                    attribute.name, f"a different type, got {columns[attribute.name].dtype}"
                )
        arrays = {
            attribute.name: columns[attribute.name]
            for attribute in fields(ExitTable)
            if attribute.name in columns
        }
        arrays = {name: array for name, array in arrays.items() if array.dtype.kind != "U"}
        return ExitTable(
            str(columns["title"]),
            float(arrays.pop("rate")),
            tuple(columns["positions"].tolist()),
            **arrays,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ExitTableError(f"{path.name} is not an exit table: {error}") from None


def _refuse(name: str, expected: str) -> ExitTableError:
    return ExitTableError(f"exit table: {name}: expected {expected}")


class TableExits:
    """`EarlyExits` from a table: row k of the request `id` is input (id + k) mod n."""

    def __init__(self, table: ExitTable, stated: StatedExits | None = None) -> None:
        """`stated`: how the model's exits are managed. Raises ExitTableError if it asks to remember
        answers and the table has no `early` features."""
        self._table = table
        self._stages: dict[tuple[int, tuple[int, ...]], tuple[list[float], float]] = {}
        self._columns = list(range(len(table.positions)))
        """By ramp: the table's column of its times and answers; the ramp of remembered answers uses
        only the times."""
        self._revision = self._revision_of(0)
        """Revision of the ramps' weights that was last published."""
        self.remembered: dict[int, bool] = {}
        """By request for which a remembered answer was found: whether that answer is the
        model's."""
        self._memory: SessionMemory[int] | None = None
        """The remembered input of each session."""
        if stated is not None and stated.remember_frames:
            if table.early is None:
                raise _refuse("early", "features, since answers are remembered")
            self._columns.insert(0, 0)
            self._memory = SessionMemory(stated.remember_frames, stated.remember_s)

    def _revision_of(self, place: int) -> int:
        revisions = self._table.revisions
        return 1 if revisions is None else int(revisions[min(place, len(revisions) - 1)])

    def learnt(self, pool: PoolId) -> RampsLearnt:
        facts = self._table.facts
        if self._memory is not None:
            later = (replace(fact, position=fact.position + 1) for fact in facts)
            facts = (replace(facts[0], name=MEMORY), *later)
        return RampsLearnt(pool, self._revision, facts, self._memory is not None)

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        sizes = [size for size in self._table.sizes.tolist() if size <= replica.max_batch]
        chains = [self._chain(size, policy.ramps) for size in sizes]
        return ExitsArranged(
            pool=replica.pool,
            replica=replica.id,
            revision=policy.revision,
            ramps=policy.ramps,
            rows=tuple(sizes),
            whole_s=tuple(self._table.whole[: len(sizes)].tolist()),
            stage_s=tuple((*stages, end) for stages, end in chains),
        )

    def _chain(self, rows: int, ramps: tuple[int, ...]) -> tuple[list[float], float]:
        """Return the seconds from the start to each ramp's answers, and to the end."""
        chain = self._stages.get((rows, ramps))
        if chain is None:
            table, active = self._table, [self._columns[ramp] for ramp in ramps]
            ramp = np.cumsum(table.seconds(table.ramp, rows)[active])
            stages = table.seconds(table.before, rows)[active] + ramp
            end = float(table.seconds(table.whole, rows)) + (float(ramp[-1]) if active else 0.0)
            chain = self._stages[rows, ramps] = stages.tolist(), end
        return chain

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        table, active = self._table, list(policy.ramps)
        places = [member.id + row for member in batch.members for row in range(member.rows)]
        inputs = np.array(places) % len(table)
        uncertainty, agrees = table.uncertainty[inputs], table.agrees[inputs]
        if self._memory is not None:
            remembered = self._remembered(batch, inputs, self._memory)
            uncertainty = np.column_stack((remembered[0], uncertainty))
            agrees = np.column_stack((remembered[1], agrees))
        # `seconds` is what the unsplit model takes here; the table's times are scaled to it.
        scale = seconds / float(table.seconds(table.whole, batch.rows))

        def chain(rows: int) -> Chain:
            stages, end = self._chain(rows, policy.ramps)
            return [scale * stage_s for stage_s in stages], scale * end

        unsure = uncertainty[:, active].tolist()
        answers = () if table.answers is None else table.answers[inputs].tolist()
        course = played(batch, policy, unsure, agrees[:, active].tolist(), chain)
        if answers:
            ends = zip(answers, course.report.agrees, strict=True)
            classes = tuple([answer if agreed else -1 for answer, agreed in ends])
            course = replace(course, report=replace(course.report, answers=classes))
        if (revision := self._revision_of(max(places) + 1)) > self._revision:
            self._revision = revision
            course = replace(course, learnt=self.learnt(batch.replica.pool))
        if self._memory is not None:
            sure = (uncertainty[:, active] < np.array(policy.thresholds)).any(axis=1).tolist()
            ended = partial(self._keep, batch, course.report, sure, inputs.tolist())
            course = replace(course, ended=ended)
        records_features = policy.features and is_judged(batch.id, policy.feature_share)
        if not records_features or (active and not all(course.report.agrees)):
            return course
        names = [member.application for member in batch.members for _ in range(member.rows)]
        everywhere = RampsJudged(
            batch.replica.pool,
            policy.revision,
            tuple(map(tuple, uncertainty.tolist())),
            agrees=tuple(map(tuple, agrees.tolist())),
            answers=tuple(answers),
            applications=tuple(names),
        )
        return replace(course, everywhere=everywhere)

    def _remembered(
        self, batch: Batch, inputs: NDArray[Any], memory: SessionMemory[int]
    ) -> tuple[list[float], list[bool]]:
        """Return, for each row, the uncertainty and the agreement of its remembered answer."""
        table, uncertainty, agrees = self._table, [NEVER] * batch.rows, [True] * batch.rows
        assert table.early is not None
        assert table.doubt is not None
        assert table.answers is not None
        row = 0
        for member in batch.members:
            last = memory.recall(member.session, member.frame, now=batch.started)
            if last is not None and member.rows == 1:
                at = int(inputs[row])
                uncertainty[row] = float(
                    reuse_uncertainty(table.early[at], table.early[last], table.doubt[last])
                )
                agrees[row] = bool(table.answers[at] == table.answers[last])
                self.remembered[member.id] = agrees[row]
            row += member.rows
        return uncertainty, agrees

    def _keep(
        self, batch: Batch, report: ExitReport, sure: Sequence[bool], inputs: Sequence[int]
    ) -> None:
        """Remember rows of a batch that has ended, like `StagedBatch.to_remember`."""
        assert self._memory is not None
        row = 0
        for member in batch.members:
            reached_end = bool(report.agrees[row]) or not report.ramps
            if member.rows == 1 and reached_end and (batch.refreshes or not sure[row]):
                self._memory.keep(member.session, member.frame, batch.started, inputs[row])
            row += member.rows

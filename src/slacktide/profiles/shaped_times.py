"""`ShapedTimes`: a profile that learns how long requests of each input shape take.

For a model with free axes that are not padded. The members of a batch have one shape, so a batch
teaches of just that shape: each has a `CorrectedTimes` of its own, on the profile's table scaled by
its *work* L, in rows as profiled:

    l(b, c) = profiled(b, c) · (c0 · min(1, L) + c1 · b · L) / (c0 + c1 · b)

with c0 and c1 as fitted to the profile. (That each batch costs c0, whatever its rows, is known of
rows as profiled. Smaller ones may cost less, and one cannot tell from single requests which part of
their time is of the batch: so they are taken to cost less of both, larger ones more for each row.
Either way larger batches are predicted to be slower rather than faster than they are.)

- A shape that has not run is read off the `SizeLaw` of those that have: `measured` says whether
  that will do. While there is no law, its time is a guess in proportion to its size, with a p99 of
  a hundred times that.
- The first `FIRST_RUNS` batches of a shape set its work: the lower median of what they say, since a
  first run is often a slow one. Nothing bounds it. After that it is corrected as any profile is.
- What one shape learns of the machine is passed on to all (`_pass_on`), so that those that have not
  run lately follow a drift.
- At most `MOST_SHAPES` are known. A new one takes the place of the one least asked for, and only if
  that one is asked for no more than it is: shapes by the thousand push out each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Request, Signature
from slacktide.profiles import reading
from slacktide.profiles.batch_times import NOTICEABLE, CorrectedTimes, mean_error
from slacktide.profiles.correction import BOUND
from slacktide.profiles.latency_fit import SizeTime, fit_latency
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.record import read_signature
from slacktide.profiles.run_classes import BatchLatency
from slacktide.profiles.size_law import SizeLaw, SizeWork, elements
from slacktide.profiles.time_distribution import MixedTime, SplitLogLogistic, TimeDistribution

MOST_SHAPES = 64
FIRST_RUNS = 7
MEMORY = 4096
"""Requests after which the counts of arrivals are halved."""
LAW_SPREAD = 1.3
"""The law may be off by this factor either way."""
GUESS_SPREAD = 100.0
"""p99 ÷ p50 where nothing is known."""
MOST_BATCHES = 30
SCHEMA = 1
_KEYS = ("schema", "speed", "shapes")
_SHAPE_KEYS = ("signature", "asked", "batches", "first", "work", "seen", "correction")
_MACHINE_VARIANCE = 0.002
_SHAPE_VARIANCE = 0.02
_STEP = 0.05
"""Shapes that are not known share a table where their work differs by less (log)."""
_LEAST_LOWER = math.log(LAW_SPREAD)


class _Shape:
    """What is known of one signature."""

    __slots__ = ("asked", "batches", "first", "seen", "size", "times", "work")

    def __init__(self, size: float, work: float, times: CorrectedTimes, seen: float) -> None:
        self.size = size
        self.work = work
        """As the machine was when it was profiled."""
        self.times = times
        self.seen = seen
        """How much of the machine's speed `times` has in it."""
        self.asked = 0.0
        self.batches = 0
        """Up to `MOST_BATCHES`."""
        self.first: list[float] | None = None
        """Work by each of its first runs; None once it is settled."""


class ShapedTimes:
    """`BatchTimes` and `Learner` (engine/ports.py) of one pool.

    Raises ProfileError as `CorrectedTimes` does.
    """

    def __init__(
        self, table: LatencyTable, reference: Signature, sizes: Sequence[SizeTime] = ()
    ) -> None:
        """`table` was measured with rows of shape `reference`, `sizes` with others."""
        self.table = table
        """The profile as measured."""
        self.reference = reference
        self.sizes = tuple(sizes)
        self._unit = elements(reference)
        self._latencies: dict[int, BatchLatency] = {}
        self._anchors: list[SizeWork] = [SizeWork(1.0, 1.0)]
        """Of the profile; they stay, whatever is asked for."""
        self._shapes: dict[Signature, _Shape] = {}
        self._until_halved = MEMORY
        self._speed = 0.0
        self._passed_on = 0.0
        self._law: SizeLaw | None = None
        self._scaled: dict[int, LatencyTable] = {}
        self._error: float | None = None
        self.batches = 0
        """Batches learnt from."""
        self.revision = 0
        """Rises when predictions have changed noticeably."""
        self._put(reference, 1.0, CorrectedTimes(table))
        known: dict[Signature, list[SizeTime]] = {}
        for one in sizes:
            if one.signature and one.signature != reference:
                known.setdefault(one.signature, []).append(one)
        for signature, points in known.items():
            works = [self._work_of(p.seconds, p.rows, p.cores) for p in points]
            work = math.exp(sum(map(math.log, works)) / len(works))
            self._anchors.append(SizeWork(self._size(signature), work))
            if len(self._shapes) < MOST_SHAPES:
                self._put(signature, work, CorrectedTimes(self._table_of(work)))
        self._refit()

    # BatchTimes and Learner

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch of `rows` rows: of the members' shape, or of one of those that come.

        Members have one shape.
        """
        if not members:
            return self._mixed(rows, cores)
        shape = self._shapes.get(members[0].signature)
        if shape is not None:
            return shape.times.of(rows, cores)
        return self._unknown(self._size(members[0].signature), rows, cores)

    def classes(self, cores: int) -> None:
        """None: a policy takes all requests to be alike."""

    def measured(self, request: Request) -> bool:
        """Whether requests of its shape are judged by what was measured: of it, or of sizes near
        enough that the law holds."""
        if request.signature in self._shapes:
            return True
        return self._law is not None and self._law.reaches(self._size(request.signature))

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch; times that are not positive and finite are ignored."""
        if not (members and 0.0 < seconds < math.inf):
            return
        self.batches += 1
        if self.measured(members[0]):
            expected = self.of(rows, cores, members).expected
            self._error = mean_error(self._error, seconds, expected)
        signature = members[0].signature
        shape = self._shapes.get(signature) or self._new(signature, len(members))
        if shape is None:
            return
        self._count(shape, len(members))
        shape.batches = min(shape.batches + 1, MOST_BATCHES)
        if shape.first is None:
            seen, overall = shape.times.revision, shape.times.overall
            shape.times.observe(seconds, members, rows, cores)
            self.revision += shape.times.revision - seen
            self._pass_on(shape, shape.times.overall - overall)
        else:
            work = self._work_of(seconds * math.exp(-self._speed), rows, cores)
            shape.first.append(work)
            self._settle(shape)
        self._refit_if_moved(shape)

    def discount(self) -> None:
        """A request was refused on the word of these predictions, and nothing runs that could
        prove them wrong: trust them a little less."""
        for shape in self._shapes.values():
            seen = shape.times.revision
            shape.times.discount()
            self.revision += shape.times.revision - seen

    # For people, logs and metrics

    @property
    def prediction_error(self) -> float | None:
        """Mean |observed − expected| / expected, exponential; None before the first batch."""
        return self._error

    @property
    def drift(self) -> float:
        """Observed over profiled: 1.3 means that everything takes 30 % longer than profiled."""
        return math.exp(self._speed)

    @property
    def drifted(self) -> bool:
        """True once the shape asked for most has been off by more than 25 % for long."""
        most = max(self._shapes.values(), key=lambda shape: shape.asked)
        return most.times.drifted

    @property
    def unknown_keys(self) -> int:
        """Shapes whose first runs have not settled their time."""
        return sum(shape.first is not None for shape in self._shapes.values())

    def latency(self, cores: int) -> BatchLatency:
        """c0 and c1 of rows as profiled."""
        known = self._latencies.get(cores)
        if known is None:
            known = self._latencies[cores] = fit_latency(self.table, cores).latency
        return known

    # What was learnt, as data

    def export(self) -> dict[str, object]:
        """What was learnt of shapes, JSON-ready; docs/profiles.md explains each field."""
        return {
            "schema": SCHEMA,
            "speed": self._speed,
            "shapes": [
                {
                    "signature": [list(each) for each in signature],
                    "asked": shape.asked,
                    "batches": shape.batches,
                    "first": None if shape.first is None else list(shape.first),
                    "work": shape.work,
                    "seen": shape.seen,
                    "correction": shape.times.export(),
                }
                for signature, shape in self._shapes.items()
            ],
        }

    def load(self, data: object) -> None:
        """Start from what another one of the same profile exported. Raises ProfileError, naming
        the field."""
        fields = reading.mapping(data, "learnt", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "learnt.schema")
        speed = reading.number(fields["speed"], "learnt.speed")
        shapes = fields["shapes"]
        if not isinstance(shapes, list | tuple) or not 1 <= len(shapes) <= MOST_SHAPES:
            raise ProfileError(f"learnt.shapes: expected a list of 1 to {MOST_SHAPES}")
        read = dict(reading.items(shapes, "learnt.shapes", self._read_shape))
        if len(read) != len(shapes) or self.reference not in read:
            raise ProfileError("learnt.shapes: expected each shape once, the profile's among them")
        self._shapes, self._speed, self._passed_on = read, speed, speed
        self.batches = max(self.batches, sum(shape.batches for shape in read.values()))
        self.revision += 1
        self._refit()

    def _read_shape(self, value: object, name: str) -> tuple[Signature, _Shape]:
        fields = reading.mapping(value, name, _SHAPE_KEYS)
        signature = read_signature(fields["signature"], f"{name}.signature")
        asked, work, seen = (
            reading.number(fields[key], f"{name}.{key}") for key in ("asked", "work", "seen")
        )
        if asked < 0.0 or not 1e-9 < work < 1e9 or abs(seen) > BOUND:
            raise ProfileError(f"{name}: asked, work or seen is out of range")
        batches = reading.whole_number(fields["batches"], f"{name}.batches")
        if not 0 <= batches <= MOST_BATCHES:
            raise ProfileError(f"{name}.batches: expected 0 to {MOST_BATCHES}")
        first: tuple[float, ...] | None = None
        if fields["first"] is not None:
            first = reading.items(fields["first"], f"{name}.first", reading.number)
            if not (1 <= len(first) < FIRST_RUNS and 1e-9 < min(first) <= max(first) < 1e9):
                raise ProfileError(f"{name}.first: expected up to {FIRST_RUNS} works above 0")
        wider = 1.0 if first is None else self._wider(len(first))
        table = self.table if signature == self.reference else self._table_of(work, wider)
        times = CorrectedTimes(table)
        times.load(fields["correction"])
        shape = _Shape(self._size(signature), work, times, seen)
        shape.asked, shape.batches = asked, batches
        shape.first = None if first is None else list(first)
        return signature, shape

    # Shapes

    def _size(self, signature: Signature) -> float:
        return elements(signature) / self._unit

    def _put(self, signature: Signature, work: float, times: CorrectedTimes) -> _Shape:
        times.shift(self._speed)
        shape = _Shape(self._size(signature), work, times, self._speed)
        self._shapes[signature] = shape
        return shape

    def _new(self, signature: Signature, asked: int) -> _Shape | None:
        """Room for a shape that has run for the first time; None if there is none."""
        if len(self._shapes) >= MOST_SHAPES:
            others = (key for key in self._shapes if key != self.reference)
            least = min(others, key=lambda key: (self._shapes[key].asked, key))
            if self._shapes[least].asked > asked:
                return None
            del self._shapes[least]
        shape = self._put(signature, 1.0, CorrectedTimes(self.table))
        shape.first = []
        return shape

    def _count(self, shape: _Shape, requests: int) -> None:
        shape.asked += requests
        self._until_halved -= requests
        if self._until_halved <= 0:
            self._until_halved = MEMORY
            for each in self._shapes.values():
                each.asked *= 0.5

    def _settle(self, shape: _Shape) -> None:
        """Set the work of a shape by its first runs, and by the law where there is one."""
        assert shape.first is not None
        runs = len(shape.first)
        said = list(shape.first)
        if self._law is not None and self._law.reaches(shape.size):
            said.append(self._law.work(shape.size))
        shape.work = sorted(said)[(len(said) - 1) // 2]
        settled = runs >= FIRST_RUNS
        wider = 1.0 if settled else self._wider(runs)
        shape.times = CorrectedTimes(self._table_of(shape.work, wider))
        shape.times.shift(self._speed)
        shape.seen = self._speed
        if settled:
            shape.first = None
        self.revision += 1

    @staticmethod
    def _wider(runs: int) -> float:
        return float(LAW_SPREAD ** (1.0 / runs))

    def _pass_on(self, shape: _Shape, moved: float) -> None:
        """`shape` has moved by `moved` (log): how much of that is the machine's, all others follow.

        As in correction.py the parts are in the ratio of two variances: how fast a machine changes,
        and how unsure one is of this shape.
        """
        own = _SHAPE_VARIANCE / (1.0 + shape.batches)
        part = moved * _MACHINE_VARIANCE / (_MACHINE_VARIANCE + own)
        self._speed += part
        shape.seen += part
        if abs(self._speed - self._passed_on) <= 2.0 * NOTICEABLE:
            return
        self._passed_on = self._speed
        for each in self._shapes.values():
            each.times.shift(self._speed - each.seen)
            each.seen = self._speed
        self.revision += 1

    # Predictions

    def _work_of(self, seconds: float, rows: int, cores: int) -> float:
        """Work of a row of which `rows` took `seconds`, on the machine as profiled."""
        ratio = seconds / self.table.expected(rows, cores)
        if ratio <= 1.0:
            return max(ratio, 1e-6)
        latency = self.latency(cores)
        return ratio + (ratio - 1.0) * latency.c0 / (latency.c1 * latency.paid(rows))

    def _table_of(self, work: float, wider: float = 1.0) -> LatencyTable:
        """The profile's table for rows of this work, its p99 `wider` than that."""
        table = self.table

        def scaled(grid: Sequence[Sequence[float]], factor: float) -> list[list[float]]:
            return [
                [
                    seconds * factor * ratio(size, count)
                    for seconds, count in zip(row, table.cores, strict=True)
                ]
                for row, size in zip(grid, table.batches, strict=True)
            ]

        def ratio(rows: int, cores: int) -> float:
            if work <= 1.0:
                return work
            latency = self.latency(cores)
            return 1.0 + (work - 1.0) * latency.c1 * rows / latency.seconds(rows, 1.0)

        return LatencyTable.from_grid(
            table.batches,
            table.cores,
            scaled(table.p50_s, 1.0),
            scaled(table.p99_s, wider),
            table.samples,
        )

    def _unknown(self, size: float, rows: int, cores: int) -> TimeDistribution:
        """The time of a shape that has not run."""
        law = self._law
        judged = law is not None and law.reaches(size)
        step = round(math.log(law.work(size) if law is not None else size) / _STEP)
        table = self._scaled.get(step)
        if table is None:
            if len(self._scaled) >= MOST_SHAPES:
                self._scaled.clear()
            table = self._scaled[step] = self._table_of(math.exp(step * _STEP))
        speed = math.exp(self._speed)
        p50 = table.expected(rows, cores) * speed
        p99 = table.p99(rows, cores) * speed * LAW_SPREAD if judged else p50 * GUESS_SPREAD
        return SplitLogLogistic(p50, p99, _LEAST_LOWER, math.log(p99 / p50))

    def _mixed(self, rows: int, cores: int) -> TimeDistribution:
        """The time of a batch of any one shape, by how often they are asked for."""
        asked = [shape for shape in self._shapes.values() if shape.asked > 0.0]
        if len(asked) <= 1:
            one = asked[0] if asked else self._shapes[self.reference]
            return one.times.of(rows, cores)
        return MixedTime(
            tuple([shape.times.of(rows, cores) for shape in asked]),
            tuple([shape.asked for shape in asked]),
        )

    def _refit_if_moved(self, shape: _Shape) -> None:
        self._refit()

    def _refit(self) -> None:
        """Fit the law to the profile's sizes and those that have run."""
        known = {one.size: one for one in self._anchors}
        for shape in self._shapes.values():
            if shape.batches:
                expected = shape.times.of(1, self.table.cores[0]).expected
                work = self._work_of(expected * math.exp(-self._speed), 1, self.table.cores[0])
                known[shape.size] = SizeWork(shape.size, work, float(shape.batches))
        self._law = SizeLaw.fit(list(known.values()))
        self._scaled.clear()

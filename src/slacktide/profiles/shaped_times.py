"""`ShapedTimes`: a profile that learns how long requests of each input shape take.

It is for models with free axes that are not padded. The members of a batch have one shape, so a
batch teaches about that shape only; each shape has its own `CorrectedTimes` (known_shape.py).

- The time of a shape that has not run follows from the `SizeLaw` of shapes that have; `measured`
  says whether this is good enough. Without a law, the time is guessed in proportion to the size,
  and the p99 is a hundred times the guess.
- Its first batches determine its work; then it is corrected like any profile.
- What one shape learns about the machine is passed on to all, so that shapes that have not run
  recently follow a drift.
- Policies see a few classes of shapes (shape_classes.py), which stay while shapes come and go.
- At most `MOST_SHAPES` are known. A new shape replaces the least frequent shape unless the latter
  has more requests; if there are thousands of shapes, they keep replacing each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Request, Signature
from slacktide.profiles import reading
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.corrected_times import DISCOUNT, NOTICEABLE, CorrectedTimes, mean_error
from slacktide.profiles.correction import BOUND
from slacktide.profiles.known_shape import (
    FIRST_RUNS,
    LAW_SPREAD,
    MOST_BATCHES,
    KnownShape,
    WorkScale,
    read_shape,
)
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.shape_classes import ClassTimes, ShapeClasses, ShapeSorting, apart
from slacktide.profiles.size_law import REACH, SizeLaw, SizeWork, elements
from slacktide.profiles.time_distribution import MixedTime, SplitLogLogistic, TimeDistribution

MOST_SHAPES = 64
MEMORY = 4096
"""Requests after which the counts of arrivals are halved."""
GUESS_SPREAD = 100.0
"""p99 ÷ p50 of a guess."""
GUESSED_ELEMENTS = 1 << 14
"""Elements of a row in a table that is a guess."""
LAW_LOWER = 3.0
"""p50 ÷ the 1st percentile by the law: a request gets a chance even if the law is off."""
LOOK_EVERY = 50
"""Batches between two updates of law and classes; a large deviation causes one immediately."""
SCHEMA = 1
_KEYS = ("schema", "speed", "batches", "shapes")
_MACHINE_VARIANCE, _MACHINE_WANDER, _SHAPE_VARIANCE = 0.25, 0.002, 0.02
_FAR = 1.15
_SHARE_SHOWS = 0.05
_STEP = 0.05
"""Unknown shapes share a table if their work differs by less than this (log)."""


class ShapedTimes(BatchTimes):
    """Raises ProfileError like `CorrectedTimes`. `expected` is the median of a batch's shape, or
    the mean of the medians of all classes."""

    learns = True

    def __init__(
        self, table: LatencyTable, reference: Signature, sizes: Sequence[SizeTime] = ()
    ) -> None:
        """`table` was measured with rows of shape `reference`, `sizes` with others. Without a
        reference the table is a guess, and no shape counts as measured by it."""
        self.table = table
        """The profile as measured."""
        self.reference = reference
        self.sizes = tuple(sizes)
        self._unit = elements(reference) if reference else GUESSED_ELEMENTS
        self._scale = WorkScale(table if reference else _as_sure_as_the_law(table))
        self._profiled: dict[Signature, float] = {reference: 1.0}
        """Work of the profiled shapes, which the law always includes."""
        self._until_halved = MEMORY
        self._speed = 0.0
        """Log factor on all times since the profile, over all shapes."""
        self._handed_on = 0.0
        self._law: SizeLaw | None = None
        self._scaled: dict[int, LatencyTable] = {}
        self._doubted: dict[Signature, None] = {}
        """Shapes for which the law was doubted, oldest first."""
        self._since_look = 0
        self._pools: tuple[ClassTimes, ...] = ()
        self._shares: tuple[float, ...] = ()
        self._snapshots: dict[int, ShapeClasses] = {}
        self._mixtures: dict[tuple[int, int], tuple[int, TimeDistribution]] = {}
        """Times of batches of any shape by (rows, cores), each with the revision it is for."""
        self._error: float | None = None
        self.batches = 0
        """Number of batches learnt from."""
        self._revision = 0
        for (_, signature), work in self._scale.works_of(sizes).items():
            if signature:
                self._profiled.setdefault(signature, work)
        self._shapes = {
            signature: KnownShape(self._scale, self._size(signature), work)
            for signature, work in [*self._profiled.items()][:MOST_SHAPES]
        }
        self._refit()
        self._sorting = self._sorted()
        self._pool()

    # BatchTimes

    @property
    def revision(self) -> int:
        """Rises when predictions have changed enough for policies to notice."""
        return self._revision

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch of `rows` rows with the shape of `members`, or with any shape."""
        if not members:
            return self._mixed(rows, cores)
        signature = members[0].signature
        shape = self._shapes.get(signature)
        if shape is not None:
            return shape.times.of(rows, cores)
        return self._unknown(self._size(signature), rows, cores)

    def scatter(self, rows: int, cores: int, members: Sequence[Request]) -> TimeDistribution:
        """The distribution from which a simulation draws the time of a batch of `members`. `of` is
        wider while its median is uncertain; this one scatters like the profiled shape."""
        shape = self._shapes.get(members[0].signature)
        time = self.of(rows, cores, members)
        if shape is not None and not shape.first:
            return time
        base, p50 = self._shapes[self.reference].times.of(rows, cores), time.expected
        return SplitLogLogistic(p50, p50 * base.p99 / base.expected, base.lower, base.tail)

    def classes(self, cores: int) -> ShapeClasses:
        """The classes of shapes; the same object while classes and shares change little."""
        snapshot = self._snapshots.get(cores)
        if snapshot is None:
            snapshot = ShapeClasses(self._sorting, self._pools, self._shares, cores)
            self._snapshots[cores] = snapshot
        return snapshot

    def measured(self, request: Request) -> bool:
        """Whether the shape of `request` has a prediction from measurements: it ran more than once,
        or sizes near enough for the law did. One run is not enough: it may have been several times
        too slow, and then tight deadlines of its shape would be refused for ever."""
        signature = request.signature
        shape = self._shapes.get(signature)
        if shape is not None and shape.runs > 1:
            return True
        return signature not in self._doubted and self._law_of(self._size(signature)) is not None

    def reach(self) -> tuple[float, float] | None:
        """Smallest and largest size of shapes that count as measured without having run."""
        law = self._law
        return None if law is None else (law.sizes[0] / REACH, law.sizes[-1] * REACH)

    def has_run(self, request: Request) -> bool:
        """Whether the shape of `request` has run and has not been forgotten since."""
        return request.signature in self._shapes

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch; times that are not positive and finite are ignored."""
        if not (members and 0.0 < seconds < math.inf):
            return
        if self.measured(members[0]):
            expected = self.of(rows, cores, members).expected
            self._error = mean_error(self._error, seconds, expected)
        self.batches += 1
        self._forget(len(members))
        signature = members[0].signature
        shape = self._shapes.get(signature)
        if shape is None and not self._make_room(len(members)):
            return
        if shape is not None and not shape.first:
            revision_before, overall = shape.times.revision, shape.times.overall
            shape.times.observe(seconds, members, rows, cores)
            self._pass_on(shape, shape.times.overall - overall)
            shape.batches = min(shape.batches + 1, MOST_BATCHES)
            moved, before = shape.times.revision != revision_before, shape.times
        else:
            if shape is None:
                shape = self._shapes[signature] = KnownShape(self._scale, self._size(signature))
                self._doubted.pop(signature, None)
            work = self._scale.work_of(seconds * math.exp(-self._speed), rows, cores)
            before, moved = shape.times, True
            shape.first_run(work, self._speed, self._law_of(shape.size))
        shape.requests += len(members)
        self._since_look += 1
        if moved:
            self._moved(signature, shape, before)
        elif self._since_look >= LOOK_EVERY:
            self._look()

    def discount(self, request: Request | None = None) -> None:
        """Trust predictions a little less: a request was refused because of them, and no run can
        prove them wrong. Applies to the shape of `request`; if only the law predicts that shape, it
        counts as unmeasured until it has run."""
        if request is None:
            self._speed = max(self._speed - DISCOUNT, -BOUND)
            self._hand_on()
            return
        signature = request.signature
        shape = self._shapes.get(signature)
        if shape is not None:
            revision_before = shape.times.revision
            shape.times.discount()
            if shape.times.revision != revision_before:
                self._moved(signature, shape, shape.times)
        else:
            if len(self._doubted) >= MOST_SHAPES:
                del self._doubted[next(iter(self._doubted))]
            self._doubted[signature] = None

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Predict `seconds` for batches of this shape, as if it had just run twice."""
        signature = members[0].signature
        shape = self._shapes.get(signature)
        if shape is not None:  # otherwise its work cannot be stored
            before = shape.times
            work = self._scale.work_of(seconds * math.exp(-self._speed), rows, cores)
            shape.restart(work, self._speed)
            self._moved(signature, shape, before)

    # For people, logs and metrics

    @property
    def prediction_error(self) -> float | None:
        """Exponential mean of |observed − expected| / expected; None before the first batch."""
        return self._error

    @property
    def drift(self) -> float:
        """Observed ÷ profiled for the most frequent shape: 1.3 means that it takes 30 % longer than
        measured."""
        return self._most_asked.times.drift

    @property
    def drifted(self) -> bool:
        """Whether the most frequent shape has been off by more than 25 % for long."""
        return self._most_asked.times.drifted

    @property
    def unknown_keys(self) -> int:
        """Number of shapes whose first runs have not settled their work."""
        return sum(bool(shape.first) for shape in self._shapes.values())

    @property
    def _most_asked(self) -> KnownShape:
        return max(self._shapes.values(), key=lambda shape: shape.requests)

    # To and from plain data

    def export(self) -> dict[str, object]:
        """The learnt shapes, JSON-ready (docs/internals/profile-files.md)."""
        shapes = [shape.to_dict(signature) for signature, shape in self._shapes.items()]
        values = (SCHEMA, self._speed, self.batches, shapes)
        return dict(zip(_KEYS, values, strict=True))

    def load(self, data: object) -> None:
        """Continue from an `export` of the same profile. Raises ProfileError, naming the field, and
        changes nothing in that case."""
        fields = reading.mapping(data, "learnt", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "learnt.schema")
        speed = reading.number(fields["speed"], "learnt.speed")
        batches = reading.whole_number(fields["batches"], "learnt.batches")
        if abs(speed) > BOUND or batches < 0:
            raise ProfileError(f"learnt: expected speed within ±{BOUND:g} and batches of 0 or more")
        listed = fields["shapes"]
        if not isinstance(listed, list | tuple) or len(listed) > MOST_SHAPES:
            raise ProfileError(f"learnt.shapes: expected a list of at most {MOST_SHAPES}")
        read = dict(reading.items(listed, "learnt.shapes", read_shape))
        if len(read) != len(listed) or self.reference not in read:
            raise ProfileError("learnt.shapes: expected distinct shapes, with the profile's")
        self._shapes = {
            signature: KnownShape.from_dict(
                self._scale, self._size(signature), shape_fields, f"learnt.shapes[{index}]"
            )
            for index, (signature, shape_fields) in enumerate(read.items())
        }
        self._speed = self._handed_on = speed
        self.batches = batches
        self._refit()
        self._sorting, self._pools = self._sorted(), ()
        self._pool()

    # Shapes

    def _size(self, signature: Signature) -> float:
        return elements(signature) / self._unit

    def _make_room(self, requests: int) -> bool:
        """Make room for a shape with `requests` requests; False if all others have more."""
        if len(self._shapes) < MOST_SHAPES:
            return True
        candidates = (key for key in self._shapes if key != self.reference)
        least = min(candidates, key=lambda key: (self._shapes[key].requests, key))
        if self._shapes[least].requests > requests:
            return False
        del self._shapes[least]
        return True

    def _forget(self, requests: int) -> None:
        """Count requests of any shape, and halve the counts of known ones now and then."""
        self._until_halved -= requests
        if self._until_halved <= 0:
            self._until_halved = MEMORY
            for shape in self._shapes.values():
                shape.requests *= 0.5

    def _pass_on(self, shape: KnownShape, moved: float) -> None:
        """The times of `shape` have changed by `moved` (log): pass the machine's part on to all
        shapes. As in correction.py, the machine's part and the shape's own part are in the ratio of
        two variances, the uncertainties of the machine and of the shape."""
        machine = _MACHINE_VARIANCE / (1.0 + self.batches) + _MACHINE_WANDER
        part = moved * machine / (machine + _SHAPE_VARIANCE / (1.0 + shape.batches))
        self._speed = min(max(self._speed + part, -BOUND), BOUND)
        shape.speed += part
        self._hand_on()

    def _hand_on(self) -> None:
        """Apply the machine's speed to all shapes if it has changed noticeably."""
        if abs(self._speed - self._handed_on) > 2.0 * NOTICEABLE:
            self._handed_on = self._speed
            for shape in self._shapes.values():
                shape.follow(self._speed)
            self._revision += 1

    def _moved(self, signature: Signature, shape: KnownShape, before: CorrectedTimes) -> None:
        """Update law and classes after the times of a shape have changed from `before`."""
        work = shape.work_now
        law, of = self._law_of(shape.size), self._sorting.class_of(signature)
        if law is None or apart(law, work) > _FAR:
            self._refit()
        shown = before in self._pools[of].times
        self._revision += shown
        if (
            self._since_look >= LOOK_EVERY
            or apart(work, self._sorting.works[of]) > self._sorting.width * _FAR
        ):
            self._look()
        elif shown and before is not shape.times:
            self._pool()

    # Law and classes

    def _law_of(self, size: float) -> float | None:
        """Work by the law; None if there is no law or it does not reach this size."""
        law = self._law
        return law.work(size) if law is not None and law.reaches(size) else None

    def _refit(self) -> None:
        """Fit the law to the sizes of the profile and of shapes that have run twice."""
        evidence = [
            SizeWork(shape.size, shape.work_now, float(shape.runs))
            for signature, shape in self._shapes.items()
            if signature and shape.runs > 1
        ]
        evidence += [
            SizeWork(self._size(signature), work, float(FIRST_RUNS))
            for signature, work in self._profiled.items()
            if signature and signature not in self._shapes
        ]
        self._law = SizeLaw.fit(evidence)
        self._scaled.clear()

    def _sorted(self) -> ShapeSorting:
        works = {key: (shape.work_now, shape.requests) for key, shape in self._shapes.items()}
        return ShapeSorting.of(works, self._law, self._unit)

    def _look(self) -> None:
        """Fit the law again; sort shapes again if one is far from its class or the law has moved;
        update the times of each class."""
        self._since_look = 0
        self._refit()
        after = self._sorted()
        if not self._sorting.holds(after, _FAR):
            self._sorting, self._pools = after, ()
        self._pool()

    def _pool(self) -> None:
        """Combine the times of each class; keep the objects of classes that have hardly changed."""
        class_of = self._sorting.class_of
        parts: list[list[tuple[CorrectedTimes, float]]] = [[] for _ in self._sorting.works]
        for signature, shape in self._shapes.items():
            parts[class_of(signature)].append((shape.times, shape.requests))
        requests_by_class = [sum([requests for _, requests in members]) for members in parts]
        requests_by_class[class_of(self.reference)] += 1e-9  # before the first request
        shares = [requests / sum(requests_by_class, 0.0) for requests in requests_by_class]
        before, pools = self._pools, list(self._pools) or [ClassTimes(members) for members in parts]
        for of, class_members in enumerate(parts if before else ()):
            if class_members and not pools[of].like(candidate := ClassTimes(class_members)):
                pools[of] = candidate
        if tuple(pools) != before or any(
            abs(a - b) > _SHARE_SHOWS for a, b in zip(shares, self._shares, strict=True)
        ):
            self._pools, self._shares = tuple(pools), tuple(shares)
            self._snapshots.clear()
            self._revision += 1

    # Predictions

    def _unknown(self, size: float, rows: int, cores: int) -> TimeDistribution:
        """The time of a shape that has not run."""
        law = self._law
        step = round(math.log(size if law is None else law.work(size)) / _STEP)
        table = self._scaled.get(step)
        if table is None:
            if len(self._scaled) >= MOST_SHAPES:
                self._scaled.clear()
            table = self._scaled[step] = self._scale.table_of(math.exp(step * _STEP))
        speed = math.exp(self._speed)
        p50 = table.expected(rows, cores) * speed
        p99 = p50 * GUESS_SPREAD
        if law is not None and law.reaches(size):
            p99 = table.p99(rows, cores) * speed * LAW_SPREAD
        return SplitLogLogistic(p50, p99, math.log(LAW_LOWER), math.log(p99 / p50))

    def _mixed(self, rows: int, cores: int) -> TimeDistribution:
        """The time of a batch of any class, weighted by frequency."""
        mixture = self._mixtures.get((rows, cores))
        if mixture is None or mixture[0] != self._revision:
            pairs = zip(self._pools, self._shares, strict=True)
            parts = [(times.of(rows, cores), share) for times, share in pairs if share > 1e-6]
            mixed = parts[0][0] if len(parts) == 1 else MixedTime(*zip(*parts, strict=True))
            mixture = self._mixtures[rows, cores] = self._revision, mixed
        return mixture[1]


def _as_sure_as_the_law(guess: LatencyTable) -> LatencyTable:
    """The guessed table with only the uncertainty of the law, for shapes that have run."""
    wide = [[LAW_SPREAD * seconds for seconds in row] for row in guess.p50_s]
    return LatencyTable.from_grid(guess.batches, guess.cores, guess.p50_s, wide)

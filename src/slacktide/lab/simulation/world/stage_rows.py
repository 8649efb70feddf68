"""Numbers of rows that stages of a simulated pipeline hand on, derived from object counts.

Each frame states how many rows the source's edges hand on, so the numbers do not depend on how the
frame is served. A later edge hands on `each` rows per row of its upstream: rows `a` to `b` of the
upstream become the rows ⌊a · each + spin⌋ to ⌊b · each + spin⌋, where each frame has its own `spin`
(0 to 1). The total is therefore the same however a stage's rows are cut into requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slacktide.domain import Signature
from slacktide.domain.plan import GOLDEN
from slacktide.lab.workloads import WorkloadError
from slacktide.lab.workloads.object_counts import ObjectCounts
from slacktide.pipelines import Pipeline


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """Rows that one edge hands on."""

    nbytes: float = 0.0
    """Bytes of each row, as it crosses a link."""
    fan_out: float = 1.0
    """Rows for each row of the upstream, unless the upstream is the source."""
    shapes: tuple[Signature, ...] = ()
    """Possible shapes of its rows. All rows of a frame have the same shape, and all shapes are
    equally frequent. Empty: rows do not differ in shape."""

    def shape(self, spin: float) -> Signature:
        """Return the shape of a frame's rows on this edge."""
        return self.shapes[int(1e4 * spin) % len(self.shapes)] if self.shapes else ()


class StageRows:
    """A pipeline and what its edges hand on. Raises WorkloadError for invalid rows."""

    def __init__(
        self,
        pipeline: Pipeline,
        edges: Mapping[tuple[str, str], EdgeRows],
        answers: Mapping[str, float] | None = None,
    ) -> None:
        """`edges`: by (upstream, downstream). `answers`: bytes of an answer's row, by sink."""
        self.pipeline = pipeline
        self.answers = dict(answers or {})
        self.edges: list[EdgeRows] = []
        for edge in pipeline.edges:
            rows = edges.get((edge.upstream, edge.downstream), EdgeRows())
            where = f"pipelines.{pipeline.name}: {edge.upstream} to {edge.downstream}"
            for name, value in (("nbytes", rows.nbytes), ("each", rows.fan_out)):
                if not 0.0 <= value < math.inf:
                    raise WorkloadError(f"{where}: {name}", f"must not be negative, got {value}")
            self.edges.append(rows)
        numbers = {edge: number for number, edge in enumerate(pipeline.edges)}
        self.out_of = {
            stage.name: tuple(numbers[edge] for edge in pipeline.out_of[stage.name])
            for stage in pipeline.stages
        }
        """By stage: the numbers of its outgoing edges, in order."""
        self.sinks = frozenset(pipeline.sinks)
        self._source_edges = self.out_of[pipeline.source]

    def span(self, picture: CameraFrame, edge: int, first: int, end: int) -> tuple[int, int]:
        """Return (first, end) of the rows that an edge makes of its upstream's `first` to `end`."""
        if edge in self._source_edges:
            return 0, picture.handed[self._source_edges.index(edge)]
        fan_out = self.edges[edge].fan_out
        return int(first * fan_out + picture.spin), int(end * fan_out + picture.spin)

    def offered(self, handed: Sequence[int], spin: float) -> int:
        """Return the number of rows at the sinks if everything is served."""
        rows = {self.pipeline.source: 1}
        for name in self.pipeline.order:
            for at, edge in enumerate(self.out_of[name]):
                downstream = self.pipeline.edges[edge].downstream
                if name == self.pipeline.source:
                    rows[downstream] = handed[at]
                else:  # all edges that lead to a join hand on the same number
                    rows[downstream] = int(rows[name] * self.edges[edge].fan_out + spin)
        return sum(rows[name] for name in self.sinks)


@dataclass(slots=True, eq=False)
class CameraFrame:
    """A frame's true properties, which the server does not know."""

    rows: StageRows
    handed: Sequence[int]
    """Number of rows on each edge of the source."""
    spin: float
    arrival: float
    deadline: float
    offered: int
    """Number of rows at the sinks if everything is served."""
    accuracy: float = 1.0
    """Accuracy of the source's answer."""
    ended_at: float = math.inf
    """Instant of the frame's outcome on the device of its camera."""


@dataclass(frozen=True, slots=True)
class PipelineCamera:
    """A source of frames of one pipeline. Raises WorkloadError for invalid fields."""

    rows: StageRows
    counts: ObjectCounts
    classes: Sequence[Sequence[str]]
    """For each edge of the source: the classes whose objects the edge hands on."""
    slo: float
    """Seconds from a frame's capture to its deadline."""
    rate: float
    """Frames per second."""
    nbytes: float
    """Bytes of a frame, as it crosses a link."""
    start: float = 0.0
    end: float = math.inf
    """Instant at which the camera stops."""
    offset: float = 0.0
    """Seconds into the counts at the camera's start."""
    level: Callable[[float], float] = field(default=lambda at: 1.0)
    """Factor on the counts, as a function of time."""

    def __post_init__(self) -> None:
        where = f"camera of {self.rows.pipeline.name}"
        edges = self.rows.out_of[self.rows.pipeline.source]
        if len(self.classes) != len(edges):
            expected = f"expected classes for {len(edges)} edges of the source"
            raise WorkloadError(where, f"{expected}, got {len(self.classes)}")
        for name in (name for names in self.classes for name in names):
            self.counts.of(name)
        for key, value in (("slo", self.slo), ("rate", self.rate)):
            if not 0.0 < value < math.inf:
                raise WorkloadError(f"{where}: {key}", f"must be positive, got {value}")
        if not 0.0 <= self.nbytes < math.inf:
            raise WorkloadError(f"{where}: nbytes", f"must not be negative, got {self.nbytes}")

    def frames(self) -> Iterator[tuple[float, CameraFrame]]:
        """Yield (instant, frame) for all frames; endless unless `end` is finite."""
        counts, number = self.counts, 0
        by_edge = [[counts.of(name) for name in names] for names in self.classes]
        step, total = counts.rate / self.rate, counts.frames
        first = self.offset * counts.rate
        while (at := self.start + number / self.rate) < self.end:
            frame = int(first + number * step + 1e-6) % total
            level = self.level(at)
            spin = (number * GOLDEN) % 1.0
            handed = [int(level * sum([series[frame] for series in n]) + spin) for n in by_edge]
            offered = self.rows.offered(handed, spin)
            yield at, CameraFrame(self.rows, handed, spin, at, at + self.slo, offered)
            number += 1

    def mean_handed(self, start: float, end: float) -> list[float]:
        """Return the mean rows per frame on each edge of the source, from `start` to `end`."""
        counts, step = self.counts, self.counts.rate / self.rate
        first = int((start - self.start) * self.rate)
        last = max(first + 1, int((end - self.start) * self.rate))
        level = self.level(0.5 * (start + end))
        frames = [
            int(self.offset * counts.rate + number * step + 1e-6) % counts.frames
            for number in range(first, last)
        ]
        return [
            level * sum(counts.of(name)[frame] for name in names for frame in frames) / len(frames)
            for names in self.classes
        ]

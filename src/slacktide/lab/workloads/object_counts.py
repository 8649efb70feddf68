"""`ObjectCounts`: number of objects on each frame of a camera, by class.

Recorded counts are CSV files with the column `frame` and one column per class, such as `persons`
and `cars`. A column `video` allows several videos in one file, as in OctopInf's counts.

Drawn counts are for tests, and for use without recorded counts. Objects come as a Poisson process
and stay for an exponential time (M/G/∞), so counts are Poisson distributed and correlated in time,
as in the public videos, where the correlation over one second is 0.6 to 0.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slacktide.lab.workloads.trace_table import no_choice, read_rows
from slacktide.lab.workloads.values import WorkloadError, not_negative, positive

STAYS_S = 5.0
"""Mean seconds that a drawn object stays in view; the correlation over 1 s is e^(−1/5) = 0.82."""
MOST_OBJECTS = 10_000
"""Maximum number of objects of one class on a frame. Each is a row of later stages; more are
probably a typing error."""
_ALL = ("video", "frame", "time_s")


@dataclass(frozen=True, slots=True)
class ObjectCounts:
    """Counts of each class on frames at `rate` per second; the frames repeat in a loop."""

    classes: Mapping[str, Sequence[int]]
    """By class: one count per frame; at least one frame."""
    rate: float = 30.0

    def __post_init__(self) -> None:
        """Raises WorkloadError that names the class and the frame."""
        positive(rate=self.rate)
        if len({len(counts) for counts in self.classes.values()}) != 1 or not self.frames:
            raise WorkloadError(
                "counts", "expected the same number of counts for every class, and at least one"
            )
        for name, counts in self.classes.items():
            for frame, count in enumerate(counts):
                if count < 0:
                    where = f"counts: {name}, frame {frame}"
                    raise WorkloadError(where, f"must not be negative, got {count}")

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(next(iter(self.classes.values()), ()))

    def mean(self, name: str) -> float:
        """Return the mean number of a class's objects per frame. Raises WorkloadError like `of`."""
        return float(np.mean(self.of(name)))

    def of(self, name: str) -> Sequence[int]:
        """Return the counts of a class. Raises WorkloadError for a class without counts."""
        if name not in self.classes:
            available = ", ".join(self.classes)
            raise WorkloadError("counts", f"no class {name!r} is counted; valid: {available}")
        return self.classes[name]


def parse_object_counts(
    lines: Iterable[str], name: str, *, only: str | None = None, rate: float = 30.0
) -> ObjectCounts:
    """Read counts from the lines of a CSV file called `name`. `only` selects a video, and is
    required if there are several. Raises WorkloadError naming file, line and column for counts that
    are missing, negative, too large or not whole, and for missing frames."""
    table = read_rows(lines, name)
    titles = [title for title in table.header if title not in _ALL]
    if "frame" not in table.header or not titles:
        expected = "expected a header such as frame,persons,cars"
        raise WorkloadError(f"{name}, line 1", f"{expected}, got {','.join(table.header)[:100]!r}")
    columns = table.columns()
    if "video" in columns:
        indices = columns["video"].chosen(only, single=True)
        columns = {title: column.part(indices) for title, column in columns.items()}
    else:
        no_choice(name, only)
    order = columns["frame"]
    for at, (line, frame) in enumerate(zip(order.lines, order.numbers(), strict=True)):
        if frame != at:
            where = f"{name}, line {line}, frame"
            raise WorkloadError(where, f"expected {at}, got {frame:g}: frames are missing")
    counts = {}
    for title in titles:
        values = columns[title].numbers()
        wrong = np.flatnonzero((values != np.floor(values)) | (values > MOST_OBJECTS))
        if wrong.size:
            where = f"{name}, line {order.lines[int(wrong[0])]}, {title}"
            expected = f"expected a whole number up to {MOST_OBJECTS}"
            raise WorkloadError(where, f"{expected}, got {values[wrong[0]]:g}")
        counts[title] = tuple(int(count) for count in values)
    return ObjectCounts(counts, rate)


def draw_object_counts(
    means: Mapping[str, float],
    seconds: float,
    rng: np.random.Generator,
    *,
    rate: float = 30.0,
    stays: float = STAYS_S,
) -> ObjectCounts:
    """Draw counts for `seconds` of frames, with these mean numbers of objects by class. Raises
    WorkloadError."""
    positive(seconds=seconds, rate=rate, stays=stays)
    frames = max(1, round(seconds * rate))
    counts = {}
    for name, mean in means.items():
        not_negative(**{name: mean})
        if mean > MOST_OBJECTS:
            raise WorkloadError(name, f"expected at most {MOST_OBJECTS} on a frame, got {mean:g}")
        changes = np.zeros(frames + 1, dtype=np.int64)
        born = rng.uniform(0.0, seconds, rng.poisson(mean * seconds / stays))
        # Objects present at 0 came earlier; an exponential stay has no memory.
        begin = np.concatenate((np.zeros(rng.poisson(mean)), born))
        end = begin + rng.exponential(stays, begin.size)
        np.add.at(changes, np.ceil(begin * rate).astype(np.int64).clip(max=frames), 1)
        np.add.at(changes, np.ceil(end * rate).astype(np.int64).clip(max=frames), -1)
        counts[name] = tuple(np.cumsum(changes)[:frames].tolist())
    return ObjectCounts(counts, rate)

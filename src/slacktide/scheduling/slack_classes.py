"""The best batch for `slack` among requests of several classes (docs/decisions/0005-slack.md).

Theory of operation. Classes are numbered by mean length, shortest first. All rows of a batch take
as long as its longest member, so the classes that may join it matter most. Candidates are therefore
*class prefixes*: for each m, size k and start point v, the first k requests of class ≤ m, in
deadline order, that have `need[m][k][v]` left. At least one of them must be of class m; otherwise
this would be a candidate of m − 1. With n_g members of class g,

    C(x) = Π F_g(x)^n_g                            P(the longest is at most x)
    T    = c0 + c1 · k · ∫ (1 − C(x)) dx           expected time; k the rows paid for
    p_i  = C((D_i − t − c0) / (c1 · k))            P(i is on time)
    v_i  = worth_i · p_i · (1 − κ (1 − e^(−spare_i / τ))),   spare_i = D_i − t − alone_i − T
    score = Σ v_i / (T + held)

The highest score wins, on ties the first (short prefix, small size, low level). `held` is the time
that the lane would wait for the batch. worth_i = penalty · (alone_g / A)^θ is the fairness knob: if
only value per second of lane time counted, long requests would always come last.

All candidates are priced together, as rows of arrays, without a loop over requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from slacktide.profiles.distribution import POINTS
from slacktide.scheduling.class_queue import ClassKind, ClassPrefixes
from slacktide.scheduling.class_tables import WIDTH, ClassTables, Floats, Ints
from slacktide.scheduling.queue import Entry
from slacktide.scheduling.slack_uniform import Candidate, DecisionContext

NEVER = np.array(np.inf).tobytes()
"""The deadline of an empty place."""

END = float(POINTS - 1)
"""Index of the last point of the grid."""


class ClassPricer:
    """Arrays, by code (class_queue.py), of the quantities that prices depend on."""

    def __init__(self, tables: ClassTables, kinds: list[ClassKind]) -> None:
        self._tables = tables
        self.kinds = kinds
        self._size = 0
        self.weight: Ints = np.zeros(0, dtype=np.int64)
        """Weight in the key of a composition: the sum of its members' weights."""
        self.alone: Floats = np.zeros(0)
        """Expected seconds alone."""
        self.worth: Floats = np.zeros(0)

    def seconds(self, codes: Sequence[int], rows: int) -> float:
        """Expected time of a batch of members with these codes."""
        classes, compositions = self._tables.classes, self._tables.compositions
        longest = float(compositions.mean_longest[self._slot(codes)]) * classes.step
        return classes.latency.seconds(rows, longest)

    def p90_longest(self, codes: Sequence[int]) -> int:
        """90th percentile of the longest length of members with these codes, in grid steps."""
        return int(self._tables.compositions.p90_longest[self._slot(codes)])

    def _slot(self, codes: Sequence[int]) -> int:
        key = int(self.weight.take(codes).sum())
        return self._tables.compositions.slots([key])[0]

    def refresh(self) -> None:
        """Extend the arrays to new codes."""
        kinds, tables = self.kinds, self._tables
        if self._size == len(kinds):
            return
        self._size = len(kinds)
        latency, means = tables.classes.latency, tables.classes.means
        weights = tables.compositions.weights.tolist()
        self.weight = np.array(
            [weights[of] if rows else 0 for of, rows, _ in kinds], dtype=np.int64
        )
        self.alone = np.array(
            [latency.seconds(rows, means[of]) if rows else 0.0 for of, rows, _ in kinds]
        )
        self.worth = np.array([tables.worth[of] * penalty for of, _, penalty in kinds])


def best_of_group(
    group: ClassPrefixes, tables: ClassTables, pricer: ClassPricer, context: DecisionContext
) -> Candidate | None:
    """The best batch of requests of one signature; None if none can be on time."""
    if group.rows == len(group):
        return _best_window(group, tables, pricer, context)
    return _best_filling(group, tables, pricer, context)


def _best_window(
    group: ClassPrefixes, tables: ClassTables, pricer: ClassPricer, context: DecisionContext
) -> Candidate | None:
    """`best_of_group` for requests of one row each: candidates are windows."""
    now, limit = context.now, tables.limit
    prefixes = _distinct(group.entries)
    deadlines, codes = _flat(group, prefixes, limit)
    starts, remaining = _starts(group, prefixes, deadlines, tables, now)
    tried = remaining >= tables.low_of_column
    tried &= tables.tried[prefixes]
    tried[:, 1:] &= (starts[:, 1:] != starts[:, :-1]) | tables.first_level[1:]
    chosen = tried.ravel().nonzero()[0]
    width = len(tables.low_of_column)
    column = chosen % width
    places = starts.ravel()[chosen, None] + tables.places
    code = codes.take(places)
    code *= tables.within.take(column, axis=0)
    keys = pricer.weight.take(code).sum(axis=1)
    # A member of the highest class weighs more in a key than all members of lower classes together.
    whole = keys >= tables.compositions.weights.take(prefixes).take(chosen // width)
    if not whole.all():
        usable = whole.nonzero()[0]
        chosen, column, keys = chosen[usable], column[usable], keys[usable]
        places, code = places[usable], code[usable]
    if not len(chosen):
        return None
    count = np.minimum(remaining.ravel()[chosen], tables.size_of_column[column])
    slots = np.array(tables.compositions.slots(keys.tolist()))
    scores = _scores(deadlines.take(places), code, count, slots, tables, pricer, context)
    sparse = count < tables.size_of_column[column]
    sparse &= tables.compositions.p90_longest[slots] > tables.sparse_until
    scores[sparse] = -np.inf
    best = int(scores.argmax())
    if sparse[best]:
        return None
    row = int(chosen[best]) // width
    begin = sum(len(group.entries[m]) + limit for m in prefixes[:row])
    start = int(starts.ravel()[chosen[best]]) - begin
    members = group.entries[prefixes[row]][start : start + int(count[best])]
    return Candidate(members, len(members), float(scores[best]))


def _scores(
    deadlines: Floats,
    code: Ints,
    rows: Ints,
    slots: Ints,
    tables: ClassTables,
    pricer: ClassPricer,
    context: DecisionContext,
    extra: float = 0.0,
) -> Floats:
    """The score of each candidate, given `deadlines` (overwritten) and `code` by candidate and
    place. `extra` is the value of further members."""
    now, kappa, compositions = context.now, context.kappa, tables.compositions
    latency, step = tables.classes.latency, tables.classes.step
    per_step = tables.paid[rows] * (latency.c1 * step)
    took = latency.c0 + per_step * compositions.mean_longest[slots]

    share = pricer.alone.take(code)
    share += (took + now)[:, None]
    share -= deadlines
    np.minimum(share, 0.0, out=share)  # `share` is −spare from here on
    share *= 1.0 / context.tau
    np.exp(share, out=share)
    share *= kappa
    share += 1.0 - kappa

    at = deadlines  # becomes the point on the length grid at which each member is just on time
    at -= now + latency.c0
    at *= (1.0 / per_step)[:, None]
    np.minimum(at, END, out=at)
    np.maximum(at, 0.0, out=at)
    points = at.astype(np.int64)
    at -= points
    points += (slots * WIDTH)[:, None]
    cdf = compositions.cdf.ravel()
    below = cdf.take(points)
    points += 1
    value = cdf.take(points)
    value -= below
    value *= at
    value += below  # P(on time)

    value *= share
    value *= pricer.worth.take(code)
    scores: Floats = value.sum(axis=1)
    scores += extra
    scores /= took + context.held
    return scores


def score_of(
    entries: Sequence[Entry],
    codes: Sequence[int],
    rows: int,
    tables: ClassTables,
    pricer: ClassPricer,
    context: DecisionContext,
    *,
    extra_codes: Sequence[int] = (),
    value: float = 0.0,
) -> float:
    """The score of one batch, whatever the rows of its members. `extra_codes` are the codes of
    best-effort members, and `value` is their value."""
    code = np.array([codes], dtype=np.int64)
    key = int(pricer.weight.take([*codes, *extra_codes]).sum())
    scores = _scores(
        np.array([[entry[0] for entry in entries]]),
        code,
        np.array([rows]),
        np.array(tables.compositions.slots([key])),
        tables,
        pricer,
        context,
        value,
    )
    return float(scores[0])


def _best_filling(
    group: ClassPrefixes, tables: ClassTables, pricer: ClassPricer, context: DecisionContext
) -> Candidate | None:
    """`best_of_group` for requests of several rows: from each start, a batch is filled in order."""
    best: Candidate | None = None
    levels = tables.need.shape[1] // len(tables.sizes)
    needs = (tables.need + context.now).tolist()
    for m in _distinct(group.entries):
        entries, codes = group.entries[m], group.codes[m]
        before = -1
        for column, need in enumerate(needs[m]):
            if not tables.tried[m, column]:
                continue
            size, low = tables.sizes[column // levels], tables.low[column // levels]
            start = bisect_left(entries, (need,))
            if column % levels and start == before:
                continue
            before = start
            chosen: list[int] = []
            rows = 0
            for i in range(start, min(start + 4 * size, len(entries))):
                if rows + entries[i][2].rows <= size:
                    chosen.append(i)
                    rows += entries[i][2].rows
                    if rows == size:
                        break
            chosen_codes = [codes[i] for i in chosen]
            if rows < low or all(pricer.kinds[code].of < m for code in chosen_codes):
                continue
            if rows < size and pricer.p90_longest(chosen_codes) > tables.sparse_until:
                continue
            members = [entries[i] for i in chosen]
            score = score_of(members, chosen_codes, rows, tables, pricer, context)
            if best is None or score > best.score:
                best = Candidate(members, rows, score)
    return best


def _distinct(entries: Sequence[Sequence[Entry]]) -> list[int]:
    """The prefixes that contain a request of their highest class."""
    prefixes = []
    before = 0
    for m, members in enumerate(entries):
        if len(members) > before:
            before = len(members)
            prefixes.append(m)
    return prefixes


def _flat(group: ClassPrefixes, prefixes: Sequence[int], limit: int) -> tuple[Floats, Ints]:
    """Deadlines and codes of these prefixes, one after the other. Each prefix is followed by
    `limit` empty places, so that a window at its end may extend beyond it."""
    empty, never = bytes(8 * limit), NEVER * limit
    deadlines = b"".join([part for m in prefixes for part in (group.deadlines[m], never)])
    codes = b"".join([part for m in prefixes for part in (group.codes[m], empty)])
    return np.frombuffer(deadlines), np.frombuffer(codes, dtype=np.int64)


def _starts(
    group: ClassPrefixes,
    prefixes: Sequence[int],
    deadlines: Floats,
    tables: ClassTables,
    now: float,
) -> tuple[Ints, Ints]:
    """(start of each window among `deadlines`, number of requests from there on), by prefix and
    column of `tables.need`."""
    needs = tables.need + now
    starts = np.empty((len(prefixes), needs.shape[1]), dtype=np.int64)
    remaining = np.empty_like(starts)
    begin = 0
    for row, m in enumerate(prefixes):
        end = begin + len(group.entries[m])
        first_fitting = deadlines[begin:end].searchsorted(needs[m])
        np.subtract(end - begin, first_fitting, out=remaining[row])
        np.add(begin, first_fitting, out=starts[row])
        begin = end + tables.limit
    return starts, remaining

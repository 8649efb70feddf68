"""`RunTimes`: learns the lengths of each application and hint bin from lone runs.

A *key* is an application with a bin of the work hint (`HintBins`). Each key has a window of samples
(`LengthWindow`) and a count of recent requests. The result is one distribution of lengths per key,
which `length_classes.py` sorts. A key with fewer than `ENOUGH` samples is assumed to take the
model's p99, the 99th percentile over all measured requests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from slacktide.domain import Request
from slacktide.profiles import reading
from slacktide.profiles.distribution import (
    POINTS,
    Floats,
    empirical_cdf,
    point_cdf,
    quantile,
    step_for,
    weighted_sum,
)
from slacktide.profiles.length_classes import KeyLengths
from slacktide.profiles.length_window import WINDOW, LengthWindow
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.run_classes import NO_HINT, Key, key_of

BINS = 8
ENOUGH_HINTS = 200
"""Number of hints after which the first edges are set."""
SEEN = 1000
"""Number of hints that are remembered, and number of new hints between two reviews of the edges."""
UNEVEN = 0.15
"""New edges are adopted only if the fullest bin loses at least this share of all hints."""


class HintBins:
    """Edges that split work hints into bins that are used about equally often. To keep the meaning
    of a bin stable, they stay fixed until new edges would make the fullest bin much emptier."""

    def __init__(self, edges: tuple[float, ...] = ()) -> None:
        self.edges = edges
        """Upper edges of all bins but the last, ascending; empty: one bin."""
        self._hints: Floats = np.empty(SEEN)
        self._count = 0
        self._look_at = ENOUGH_HINTS if not edges else SEEN

    def see(self, hint: float) -> bool:
        """Record the hint of a request; return whether the edges have changed."""
        self._hints[self._count % SEEN] = hint
        self._count += 1
        if self._count < self._look_at:
            return False
        self._look_at += SEEN
        hints = self._hints[: min(self._count, SEEN)]
        levels = np.arange(1, BINS) / BINS
        edges = tuple(sorted(set(map(float, np.quantile(hints, levels, method="higher")))))
        if edges == self.edges or _fullest(hints, self.edges) - _fullest(hints, edges) < UNEVEN:
            return False
        self.edges = edges
        return True

    def bin_of(self, hint: float) -> int:
        """Index of the bin; 0 has the smallest hints."""
        return bisect_right(self.edges, hint)


def _fullest(hints: Floats, edges: tuple[float, ...]) -> float:
    """Share of the hints in the fullest bin."""
    ends = np.sort(hints).searchsorted(np.array(edges))
    return max(b - a for a, b in pairwise([0, *map(int, ends), hints.size])) / hints.size


ENOUGH = 20
"""Number of samples from which a key counts as known."""
MOST_KEYS = 64
"""Limit on keys, since clients name their own applications. The least frequent key is dropped."""
MEMORY = 4096
"""Requests after which the counts of arrivals are halved."""
HEADROOM = 1.15
"""Length of the grid ÷ longest sample: with headroom, new samples rarely require a new grid."""
TYPICAL_LEVEL = 0.98
OUTLIER_RATIO = 2.0
"""Lengths are clipped at OUTLIER_RATIO × their key's quantile at TYPICAL_LEVEL. Up to two runs in a
hundred may be outliers of the machine, which must not stretch the grid."""
SCHEMA = 1
_KEYS = ("schema", "edges", "keys")
_KEY_FIELDS = ("application", "bin", "arrivals", "gross", "fixed", "hints")


class RunTimes:
    """Learns lengths and makes distributions. Memory is bounded by `MOST_KEYS` windows."""

    def __init__(self) -> None:
        self._windows: dict[Key, LengthWindow] = {}
        self._arrivals: dict[Key, float] = {}
        self._recent: dict[Key, float] = {}
        self._bins = HintBins()
        self._until_halved = MEMORY
        self._step = 0.0
        self._cdfs: dict[Key, Floats] = {}
        self._factor = 1.0
        self.samples = 0
        """Number of lone runs remembered, over all keys."""

    @property
    def edges(self) -> tuple[float, ...]:
        """Upper edges of all hint bins but the last."""
        return self._bins.edges

    @property
    def known_keys(self) -> frozenset[Key]:
        """Keys with enough samples."""
        return frozenset(key for key, w in self._windows.items() if w.count >= ENOUGH)

    @property
    def unknown_keys(self) -> frozenset[Key]:
        """Keys without enough samples. Their requests are assumed to take the model's p99."""
        return frozenset(self._arrivals) - self.known_keys

    @property
    def tagged(self) -> bool:
        """Whether any request had an application or a hint."""
        return any(key != ("", NO_HINT) for key in self._arrivals)

    def fresh(self, key: Key) -> float:
        """Number of recent lone runs of `key`, halved whenever the counts of arrivals are."""
        return self._recent.get(key, 0.0)

    def key_of(self, request: Request) -> Key:
        """The key of `request` under the present hint bins."""
        return key_of(request, self._bins.edges)

    def arrived(self, members: Iterable[Request]) -> list[Key]:
        """Count requests and return their keys. May change the hint bins (`edges`)."""
        keys = []
        arrivals = self._arrivals
        for member in members:
            key = member.application, NO_HINT
            if member.work_hint is not None:
                if self._bins.see(member.work_hint):
                    self._sort_again()
                key = self.key_of(member)
            if key not in arrivals:
                self._make_room()
                arrivals[key] = 0.0
            arrivals[key] += 1.0
            keys.append(key)
        self._until_halved -= len(keys)
        if self._until_halved <= 0:
            self._until_halved = MEMORY
            for counts in (arrivals, self._recent):
                for key in counts:
                    counts[key] *= 0.5
        return keys

    def learn(self, request: Request, gross: float, fixed: float) -> int:
        """Learn one lone run of `request`, see `LengthWindow.add`. Returns 1 or, after a drift, the
        number of samples that the window held before."""
        key = self.key_of(request)
        self._recent[key] = self._recent.get(key, 0.0) + 1.0
        return self._add(key, gross, fixed, request.work_hint)

    def _add(self, key: Key, gross: float, fixed: float, hint: float | None) -> int:
        window = self._windows.get(key)
        if window is None:
            if key not in self._arrivals:
                self._make_room()
                self._arrivals[key] = 0.0
            window = self._windows[key] = LengthWindow()
        had = window.count
        drifted = window.add(gross, fixed, math.nan if hint is None else hint)
        self._cdfs.pop(key, None)
        self.samples += window.count - had
        return had if drifted else 1

    def distributions(self, factor: float) -> tuple[list[KeyLengths], float]:
        """(lengths by key, step of their grid), assuming that c0 is `factor` times the profile's;
        no lengths if no key is known."""
        sampled = [key for key, window in self._windows.items() if window.count >= ENOUGH]
        if not sampled:
            return [], 0.0
        if factor != self._factor:
            self._factor = factor
            self._cdfs.clear()
        fresh = {
            key: _trimmed(self._windows[key].lengths(factor))
            for key in sampled
            if key not in self._cdfs
        }
        longest = max((float(values.max()) for values in fresh.values()), default=0.0)
        end = self._step * (POINTS - 1.5)
        if not end or longest > end or (len(fresh) == len(sampled) and longest * 2.0 < end):
            self._step = step_for(max(longest, 1e-9) * HEADROOM)
            self._cdfs.clear()
            fresh = {key: _trimmed(self._windows[key].lengths(factor)) for key in sampled}
        for key, values in fresh.items():
            self._cdfs[key] = empirical_cdf(values, self._step)
        step = self._step
        shares = np.array([max(self._arrivals[key], 1e-6) for key in sampled])
        mix: Floats = weighted_sum(
            shares / shares.sum(), np.stack([self._cdfs[key] for key in sampled])
        )
        lengths = [KeyLengths(key, self._cdfs[key], self._arrivals[key]) for key in sampled]
        unknown = self.unknown_keys
        if unknown:
            guess = point_cdf(quantile(mix, 0.99, step), step)
            lengths += [KeyLengths(key, guess, self._arrivals[key]) for key in sorted(unknown)]
        return lengths, step

    def _make_room(self) -> None:
        if len(self._arrivals) < MOST_KEYS:
            return
        least = min(self._arrivals, key=lambda key: (self._arrivals[key], key))
        del self._arrivals[least]
        self._recent.pop(least, None)
        if least in self._windows:
            self.samples -= self._windows.pop(least).count
        self._cdfs.pop(least, None)

    def _sort_again(self) -> None:
        """Move the samples that have a hint, and the arrivals of their keys, to the new bins."""
        hinted = [key for key in self._arrivals if key[1] != NO_HINT]
        moving = {key: self._windows.pop(key) for key in hinted if key in self._windows}
        counts = {key: self._arrivals.pop(key) for key in hinted}
        for key, window in moving.items():
            self._cdfs.pop(key, None)
            self.samples -= window.count
            self._recent.pop(key, None)
            weight = counts[key] / window.count
            for gross, fixed, hint in zip(*window.samples(), strict=True):
                to = (key[0], self._bins.bin_of(float(hint)))
                self._add(to, float(gross), float(fixed), float(hint))
                self._arrivals[to] += weight

    # To and from plain data

    def to_dict(self) -> dict[str, object]:
        """JSON-ready (docs/internals/profile-files.md)."""
        keys: list[dict[str, object]] = []
        for (application, bin), arrivals in self._arrivals.items():
            window = self._windows.get((application, bin))
            gross, fixed, hints = (
                ([], [], []) if window is None else map(np.ndarray.tolist, window.samples())
            )
            keys.append(
                {
                    "application": application,
                    "bin": bin,
                    "arrivals": arrivals,
                    "gross": gross,
                    "fixed": fixed,
                    "hints": None if bin == NO_HINT else hints,
                }
            )
        return {"schema": SCHEMA, "edges": list(self.edges), "keys": keys}

    @classmethod
    def from_dict(cls, data: object) -> RunTimes:
        """Read what `to_dict` wrote. Raises ProfileError, naming the field, for anything else."""
        fields = reading.mapping(data, "lengths", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "lengths.schema")
        edges = reading.items(fields["edges"], "lengths.edges", reading.number)
        if list(edges) != sorted(set(edges)):
            raise ProfileError("lengths.edges: expected ascending numbers")
        times = cls()
        times._bins = HintBins(edges)
        read = reading.items(fields["keys"], "lengths.keys", _read_key)
        if len(read) > MOST_KEYS:
            raise ProfileError(f"lengths.keys: expected at most {MOST_KEYS}, got {len(read)}")
        for index, (key, arrivals, samples) in enumerate(read):
            if key in times._arrivals:
                raise ProfileError(f"lengths.keys[{index}]: {key!r} occurs twice")
            if key[1] > len(edges):
                raise ProfileError(f"lengths.keys[{index}].bin: expected at most {len(edges)}")
            times._arrivals[key] = arrivals
            for gross, fixed, hint in samples:
                times._add(key, gross, fixed, hint)
        return times


def _trimmed(lengths: Floats) -> Floats:
    """Clip rare long lengths that may be outliers of the machine (see `OUTLIER_RATIO`)."""
    level = min(TYPICAL_LEVEL, 1.0 - 3.0 / lengths.size)
    return np.minimum(lengths, OUTLIER_RATIO * float(np.quantile(lengths, level)))


_Sample = tuple[float, float, float]


def _read_key(value: object, name: str) -> tuple[Key, float, list[_Sample]]:
    fields: Mapping[str, object] = reading.mapping(value, name, _KEY_FIELDS)
    key = (
        reading.text(fields["application"], f"{name}.application"),
        reading.whole_number(fields["bin"], f"{name}.bin"),
    )
    if key[1] < NO_HINT:
        raise ProfileError(f"{name}.bin: expected at least {NO_HINT} (no hint), got {key[1]}")
    arrivals = reading.number(fields["arrivals"], f"{name}.arrivals")
    gross = reading.items(fields["gross"], f"{name}.gross", reading.number)
    fixed = reading.items(fields["fixed"], f"{name}.fixed", reading.number)
    if key[1] == NO_HINT:
        if fields["hints"] is not None:
            raise ProfileError(f"{name}.hints: expected null without a bin")
        hints: tuple[float, ...] = (math.nan,) * len(gross)
    else:
        hints = reading.items(fields["hints"], f"{name}.hints", reading.number)
    if not len(gross) == len(fixed) == len(hints) <= WINDOW:
        raise ProfileError(f"{name}: expected as many gross, fixed and hints, at most {WINDOW}")
    if min((arrivals, *gross, *fixed)) < 0.0:
        raise ProfileError(f"{name}: expected arrivals, gross and fixed of 0 or more")
    return key, arrivals, list(zip(gross, fixed, hints, strict=True))

"""The requests of a scenario: drawn from its seed as arrays, handed out one by one.

Each application has its own random numbers for each purpose, so that another scheduler, another
deadline or another application leaves the rest as it was: cells of a grid are paired wherever they
say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Notice
from slacktide.profiles.run_classes import NO_HINT, Key
from slacktide.simulation.items import DrawnRequest, Item, Upload
from slacktide.simulation.scenario.errors import ScenarioError
from slacktide.simulation.scenario.journeys import Way
from slacktide.simulation.scenario.profiles import Training
from slacktide.simulation.scenario.sections import Hint
from slacktide.simulation.streams import stream
from slacktide.workloads import Arrivals, Deadlines, Lengths, WorkloadError

TRAINING = 4_000
"""Requests of each application that policies know of beforehand, where lengths are known."""
HINT_BINS = 8
_CHUNK = 8_192
"""Requests that exist at a time, apart from those under way."""

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One application's requests, as they will be drawn."""

    name: str
    model: str
    arrivals: Arrivals
    lengths: Lengths | None
    rows: tuple[int, ...]
    deadlines: Deadlines | None
    """None: best effort."""
    patience: float
    """Seconds after its arrival by which a best-effort request is ordered."""
    penalty: float = 1.0
    hint: Hint | None = None
    link: Way | None = None
    notice: float | None = None

    def owner(self, mode: int) -> str:
        """The application a request of this mode belongs to."""
        return (self.lengths.names[mode] if self.lengths is not None else "") or self.name


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Requests by column, each of shape (n,)."""

    begins: Column
    """When the server first hears of the request."""
    arrival: Column
    """When it arrives: latency counts from there."""
    complete: Column
    believed: Column
    """When the server takes it to be complete."""
    network: Column
    """Seconds on the way before it arrived."""
    deadline: Column
    rows: NDArray[np.int64]
    length: Column
    hint: Column
    """NaN: none."""
    owner: NDArray[np.int64]
    """Index into the applications of `_Sender`."""
    sender: NDArray[np.int64]
    """Index into the streams."""


def requests(streams: Sequence[Traffic], *, duration: float, seed: int) -> Iterator[Item]:
    """All requests of all applications that are sent within `duration`, in order.

    Those of one instant keep the order of the applications.
    """
    parts = [_draw(one, number, duration, seed) for number, one in enumerate(streams)]
    columns = [
        np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(_Drawn)
    ]
    order = np.argsort(columns[0], kind="stable")
    senders = [_Sender(one) for one in streams]
    for start in range(0, order.size, _CHUNK):
        chosen = order[start : start + _CHUNK]
        for id, row in enumerate(
            zip(*(column[chosen].tolist() for column in columns), strict=True), start=start
        ):
            yield senders[row[-1]].item(id, *row[:-1])


def training(streams: Sequence[Traffic], *, duration: float, seed: int) -> Training:
    """What policies may know of one model's requests: 4,000 of each application, drawn apart."""
    lengths: dict[Key, list[Column]] = {}
    shares: dict[Key, float] = {}
    samples = []
    for one in streams:
        assert one.lengths is not None, "only padded models are told of lengths"
        drawn = one.lengths.draw(TRAINING, stream(seed, f"training lengths of {one.name}"))
        hints = _hints(one.hint, drawn.lengths, stream(seed, f"training hints of {one.name}"))
        samples.append((one, drawn, hints))
    stated = [hints[~np.isnan(hints)] for _, _, hints in samples]
    edges = _edges(np.concatenate(stated)) if any(each.size for each in stated) else ()
    for one, drawn, hints in samples:
        bins = np.where(np.isnan(hints), NO_HINT, np.searchsorted(edges, hints, side="right"))
        weight = one.arrivals.mean_rate(duration) / TRAINING
        for mode, bin in sorted({*zip(drawn.modes.tolist(), bins.tolist(), strict=True)}):
            chosen = drawn.lengths[(drawn.modes == mode) & (bins == bin)]
            key = (one.owner(mode), bin)
            lengths.setdefault(key, []).append(chosen)
            shares[key] = shares.get(key, 0.0) + weight * chosen.size
    return Training({key: np.concatenate(some) for key, some in lengths.items()}, shares, edges)


def _draw(one: Traffic, number: int, duration: float, seed: int) -> _Drawn:
    try:
        sent = one.arrivals.times(duration, stream(seed, f"arrivals of {one.name}"))
    except WorkloadError as error:  # more of something than building could know
        raise ScenarioError([f"applications.{one.name}.arrivals: {error}"]) from None
    count = sent.size
    rows = stream(seed, f"rows of {one.name}").integers(len(one.rows), size=count)
    length, mode = np.zeros(count), np.zeros(count, dtype=np.int64)
    if one.lengths is not None:
        drawn = one.lengths.draw(count, stream(seed, f"lengths of {one.name}"))
        length, mode = drawn.lengths, drawn.modes
    if one.deadlines is None:
        allowance = np.full(count, one.patience)
    else:
        allowance = one.deadlines.draw(count, stream(seed, f"deadlines of {one.name}"))
    begins = arrival = complete = believed = sent
    network, reserve = np.zeros(count), 0.0
    if one.link is not None:
        journeys = one.link.journeys(sent)
        begins = arrival = journeys.arrival
        complete, believed = journeys.complete, journeys.believed
        network, reserve = arrival - sent, one.link.link.way_back
    elif one.notice is not None:
        begins = np.maximum(sent - one.notice, 0.0)
    return _Drawn(
        begins=begins,
        arrival=arrival,
        complete=complete,
        believed=believed,
        network=network,
        deadline=sent + allowance - reserve,
        rows=np.array(one.rows, dtype=np.int64)[rows],
        length=length,
        hint=_hints(one.hint, length, stream(seed, f"hints of {one.name}")),
        owner=mode,
        sender=np.full(count, number, dtype=np.int64),
    )


def _hints(hint: Hint | None, lengths: Column, generator: np.random.Generator) -> Column:
    """What requests of these lengths say of themselves; NaN where nothing."""
    if hint is None:
        return np.full(lengths.size, np.nan)
    if hint.claim is not None:
        return np.full(lengths.size, hint.claim)
    assert hint.error is not None
    return lengths * np.exp(hint.error * generator.standard_normal(lengths.size))


def _edges(hints: Column) -> tuple[float, ...]:
    """Upper edges of all bins but the last: as many hints in each, as far as they differ."""
    levels = np.arange(1, HINT_BINS) / HINT_BINS
    return tuple(dict.fromkeys(np.quantile(hints, levels, method="inverted_cdf").tolist()))


class _Sender:
    """Makes the items of one application: what they have in common is looked up once."""

    def __init__(self, one: Traffic) -> None:
        self._traffic = one
        modes = 1 if one.lengths is None else len(one.lengths.names)
        self._owners = [one.owner(mode) for mode in range(modes)]
        self._whole = one.link is None and one.notice is None
        self._payload, self._reserve = 0, 0.0
        if one.link is not None:
            self._payload, self._reserve = one.link.payload_bytes, one.link.link.way_back

    def item(
        self,
        id: int,
        begins: float,
        arrival: float,
        complete: float,
        believed: float,
        network: float,
        deadline: float,
        rows: int,
        length: float,
        hint: float,
        owner: int,
    ) -> Item:
        """One request; an upload where it is announced before it is complete."""
        one = self._traffic
        request = DrawnRequest(
            id=id,
            model=one.model,
            arrival=arrival,
            deadline=deadline,
            rows=rows,
            penalty=one.penalty,
            best_effort=one.deadlines is None,
            application=self._owners[owner],
            client=one.name,
            work_hint=None if hint != hint else hint,
            reserve=self._reserve,
            network_time=network,
            length=length,
        )
        if self._whole:
            return request
        notice = Notice(
            id=id,
            model=one.model,
            arrival=begins,
            deadline=deadline,
            payload_bytes=self._payload,
            complete_at=believed,
            penalty=one.penalty,
            best_effort=request.best_effort,
            application=request.application,
            client=one.name,
        )
        return Upload(notice, request, complete)


def by_model(streams: Sequence[Traffic]) -> Mapping[str, tuple[Traffic, ...]]:
    """The applications of each model, in their order."""
    models: dict[str, list[Traffic]] = {}
    for one in streams:
        models.setdefault(one.model, []).append(one)
    return {name: tuple(some) for name, some in models.items()}

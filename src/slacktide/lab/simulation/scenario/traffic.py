"""The requests of a scenario: drawn from its seed a few thousand at a time, handed out one by one.

Each application has a separate random generator for each purpose, so a change of the scheduler, a
deadline or an application leaves all other draws unchanged, and cells of a grid compare pairwise.
Over a link, the server learns of a request at its first byte and has all of it at its last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from heapq import heappop, heappush
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Notice, Signature
from slacktide.lab.simulation.items import DrawnRequest, Item, SimulatedUpload, rng_for
from slacktide.lab.simulation.scenario.profiles import Training
from slacktide.lab.simulation.scenario.reading import ScenarioError
from slacktide.lab.simulation.scenario.sections import Hint
from slacktide.lab.workloads import (
    Arrivals,
    ConstantLink,
    Deadlines,
    Lengths,
    SharedLink,
    TraceLink,
    WorkloadError,
)
from slacktide.profiles.run_classes import NO_HINT, Key
from slacktide.wire.link_estimate import LinkEstimate

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LinkDelays:
    """Transfer times of an application's requests, in sending order; absolute seconds, (n,)."""

    arrival: Column
    """Instants at which first bytes arrive."""
    complete: Column
    """Instants at which last bytes arrive."""
    believed: Column
    """Instants at which the server expects last bytes, judged when the first byte arrives."""


@dataclass(frozen=True, slots=True)
class ClientLink:
    """The link that an application's requests travel over, and the size of each request."""

    link: ConstantLink | TraceLink
    payload_bytes: int
    shared: bool = False
    """Whether the requests queue for the link."""

    def delays(self) -> Callable[[Column], LinkDelays]:
        """Return a function from the instants at which the next requests are sent (seconds,
        rising, shape (n,)) to their delays."""
        size = self.payload_bytes
        link = SharedLink(self.link) if self.shared else self.link
        # The server soon knows a bandwidth that never changes.
        secret = not isinstance(self.link, ConstantLink)
        # The server's own estimate, from the bodies that are complete at each first byte.
        estimate = LinkEstimate()
        under_way: list[tuple[float, float]] = []

        def of(sent: Column) -> LinkDelays:
            journeys = [link.deliver(size, sent=at) for at in sent.tolist()]
            believed = []
            for journey in journeys:
                first = journey.arrival
                heappush(under_way, (journey.complete_at, first))
                while under_way and under_way[0][0] <= first:
                    end, begin = heappop(under_way)
                    estimate.observe(size, end - begin, now=end)
                believed.append(first + estimate.transfer_time(size, now=first))
            arrival = np.array([journey.arrival for journey in journeys])
            complete = np.array([journey.complete_at for journey in journeys])
            return LinkDelays(arrival, complete, np.array(believed) if secret else complete)

        return of


TRAINING = 4_000
"""Number of sampled lengths of each application that policies get before the run."""
HINT_BINS = 8


@dataclass(frozen=True, slots=True)
class Traffic:
    """Distributions from which one application's requests are drawn."""

    name: str
    model: str
    arrivals: Arrivals
    lengths: Lengths | None
    rows: tuple[int, ...]
    deadlines: Deadlines | None
    """None: best effort."""
    patience: float
    """A best-effort request is ordered as if it were due this many seconds after it is sent."""
    penalty: float = 1.0
    hint: Hint | None = None
    link: ClientLink | None = None
    notice: float | None = None
    signatures: tuple[Signature, ...] = ((),)
    """Possible signatures; one of them is drawn for each request."""

    def owner(self, mode: int) -> str:
        """Return the application to which a request of this mode of `lengths` belongs."""
        return (self.lengths.names[mode] if self.lengths is not None else "") or self.name


Drawn = NDArray[np.float64]
"""The next requests of an application, shape (COLUMNS, n). Its rows: when the server first hears of
a request; arrival, from which latency counts; completion; completion as the server expects it;
seconds on the way before the arrival; deadline; rows; length; hint; index of the owner in
`_Sender`; index of the signature."""
COLUMNS = 11


def requests(streams: Sequence[Traffic], *, duration: float, seed: int) -> Iterator[Item]:
    """Yield all requests that any application sends within `duration` seconds, in order of time.
    Requests of the same instant keep the order of the applications."""
    senders = [_Sender(traffic) for traffic in streams]
    sources = [_drawn(traffic, duration, seed) for traffic in streams]
    drawn = [np.empty((COLUMNS, 0)) for _ in streams]
    drawn_until = [-np.inf for _ in streams]
    """By application: `drawn` holds every request that begins before this instant."""
    first = 0
    while senders:
        until = min(drawn_until)
        ready = [columns[:, columns[0] < until] for columns in drawn] if until < np.inf else drawn
        order = np.argsort(np.concatenate([columns[0] for columns in ready]), kind="stable")
        ids = np.empty_like(order)
        ids[order] = np.arange(first, first + order.size)
        edges = np.cumsum([columns.shape[1] for columns in ready])[:-1]
        items: list[Item] = []
        for sender, part, sender_ids in zip(senders, ready, np.split(ids, edges), strict=True):
            items += sender.items(sender_ids.tolist(), part)
        yield from [items[place] for place in order.tolist()]
        if until == np.inf:
            return
        first += order.size
        for number, source in enumerate(sources):
            drawn[number] = drawn[number][:, drawn[number][0] >= until]
            if drawn_until[number] == until:
                drawn_until[number], more = next(source, (np.inf, np.empty((COLUMNS, 0))))
                drawn[number] = np.hstack((drawn[number], more))


def training(streams: Sequence[Traffic], *, duration: float, seed: int) -> Training:
    """Return what policies may know of one model's requests, from 4,000 separate draws for each
    application."""
    lengths: dict[Key, list[Column]] = {}
    shares: dict[Key, float] = {}
    samples = []
    for source in streams:
        assert source.lengths is not None, "only padded models have lengths"
        drawn = source.lengths.draw(TRAINING, rng_for(seed, f"training lengths of {source.name}"))
        random = rng_for(seed, f"training hints of {source.name}")
        hints = _hints(source.hint, drawn.lengths, random)
        samples.append((source, drawn, hints))
    stated = [hints[~np.isnan(hints)] for _, _, hints in samples]
    edges = _edges(np.concatenate(stated)) if any(column.size for column in stated) else ()
    for source, drawn, hints in samples:
        bins = np.where(np.isnan(hints), NO_HINT, np.searchsorted(edges, hints, side="right"))
        weight = source.arrivals.mean_rate(duration) / TRAINING
        for mode, bin in sorted({*zip(drawn.modes.tolist(), bins.tolist(), strict=True)}):
            chosen = drawn.lengths[(drawn.modes == mode) & (bins == bin)]
            key = (source.owner(mode), bin)
            lengths.setdefault(key, []).append(chosen)
            shares[key] = shares.get(key, 0.0) + weight * chosen.size
    return Training({key: np.concatenate(parts) for key, parts in lengths.items()}, shares, edges)


def _drawn(traffic: Traffic, duration: float, seed: int) -> Iterator[tuple[float, Drawn]]:
    """Yield (until, new draws): every request that begins before `until` has been drawn by then."""
    row_numbers, hints, deadlines, lengths, shapes = (
        rng_for(seed, f"{purpose} of {traffic.name}")
        for purpose in ("rows", "hints", "deadlines", "lengths", "shapes")
    )
    draw_lengths = traffic.lengths.drawer(lengths) if traffic.lengths is not None else None
    delays_of = traffic.link.delays() if traffic.link is not None else None
    way_back = traffic.link.link.way_back if traffic.link is not None else 0.0
    chunks = traffic.arrivals.chunks(duration, rng_for(seed, f"arrivals of {traffic.name}"))
    try:
        for sent in filter(np.size, chunks):
            count = sent.size
            length = mode = network = np.zeros(count)
            if draw_lengths is not None:
                drawn = draw_lengths(count)
                length, mode = drawn.lengths, drawn.modes.astype(np.float64)
            if traffic.deadlines is None:
                allowance = np.full(count, traffic.patience)
            else:
                allowance = traffic.deadlines.draw(count, deadlines)
            begins = arrival = complete = believed = sent
            if delays_of is not None:
                delays = delays_of(sent)
                begins = arrival = delays.arrival
                complete, believed = delays.complete, delays.believed
                network = arrival - sent
            elif traffic.notice is not None:
                begins = np.maximum(sent - traffic.notice, 0.0)
            deadline = sent + allowance - way_back
            rows = np.array(traffic.rows)[row_numbers.integers(len(traffic.rows), size=count)]
            hint = _hints(traffic.hint, length, hints)
            shape = np.zeros(count)
            if len(traffic.signatures) > 1:
                shape += shapes.integers(len(traffic.signatures), size=count)
            columns = (begins, arrival, complete, believed, network, deadline, rows, length, hint)
            # A request that is sent later begins no earlier than its sending or its notice.
            yield float(sent[-1]) - (traffic.notice or 0.0), np.stack((*columns, mode, shape))
    except WorkloadError as error:  # a limit that only drawing can exceed
        raise ScenarioError([f"applications.{traffic.name}.arrivals: {error}"]) from None


def _hints(hint: Hint | None, lengths: Column, generator: np.random.Generator) -> Column:
    """Return a hint for each of these lengths; NaN if the application gives no hints."""
    if hint is None:
        return np.full(lengths.size, np.nan)
    if hint.claim is not None:
        return np.full(lengths.size, hint.claim)
    assert hint.error is not None
    return lengths * np.exp(hint.error * generator.standard_normal(lengths.size))


def _edges(hints: Column) -> tuple[float, ...]:
    """Return the upper edges of all bins but the last; bins hold equally many hints if possible."""
    levels = np.arange(1, HINT_BINS) / HINT_BINS
    return tuple(dict.fromkeys(np.quantile(hints, levels, method="inverted_cdf").tolist()))


_NAMES = [field.name for field in fields(DrawnRequest)]
_REST = [
    repeat(field.default)
    for field in fields(DrawnRequest)[_NAMES.index("network_time") + 1 : _NAMES.index("length")]
]
"""Defaults of the fields that scenarios do not state."""


class _Sender:
    """Makes the items of one application. Looks up their common facts only once."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        modes = 1 if traffic.lengths is None else len(traffic.lengths.names)
        self._owners = [traffic.owner(mode) for mode in range(modes)]
        self._payload, self._reserve = 0, 0.0
        if traffic.link is not None:
            self._payload, self._reserve = traffic.link.payload_bytes, traffic.link.link.way_back

    def items(self, ids: Sequence[int], drawn: Drawn) -> Iterable[Item]:
        """Return requests, or uploads if they are announced before they are complete."""
        traffic = self._traffic
        model, penalty, none = repeat(traffic.model), repeat(traffic.penalty), repeat(None)
        begins, arrival, complete, believed, network, deadline = drawn[:6].tolist()
        rows, owners, shapes = drawn[[6, 9, 10]].astype(np.int64).tolist()
        length, hint = drawn[7:9].tolist()
        owned = [self._owners[owner] for owner in owners]
        whose = (repeat(traffic.deadlines is None), none, owned, repeat(traffic.name))
        # By position, a column at a time: keywords would cost as much again.
        hinted = none if traffic.hint is None else hint
        work = (hinted, repeat(self._reserve), network, *_REST, length)
        signatures: Iterable[Signature] = repeat(traffic.signatures[0])
        if len(traffic.signatures) > 1:
            signatures = map(traffic.signatures.__getitem__, shapes)
        head = (ids, model, arrival, deadline, rows, penalty, signatures)
        drawn_requests = map(DrawnRequest, *head, *whose, *work)
        if traffic.link is None and traffic.notice is None:
            return drawn_requests
        body = (repeat(self._payload), believed, penalty)
        notices = map(Notice, ids, model, begins, deadline, *body, *whose)
        return map(SimulatedUpload, notices, drawn_requests, complete)

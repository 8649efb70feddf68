"""What has got through a link by when, in virtual time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slacktide.lab.netem.link_queue import (
    LEAST_PIECE,
    MOST_PIECE,
    PIECE_SECONDS,
    Flow,
    LinkQueue,
    Piece,
)
from slacktide.lab.workloads import BandwidthTrace, TraceLink


def link(*steps: tuple[float, float], offset: float = 0.0) -> TraceLink:
    """(seconds, bytes per second) one behind the other."""
    ends = np.cumsum([seconds for seconds, _ in steps])
    starts = np.concatenate(([0.0], ends[:-1]))
    trace = BandwidthTrace(starts, [rate for _, rate in steps], float(ends[-1]))
    return TraceLink(trace, offset=offset)


def everything(queue: LinkQueue[Flow], until: float = math.inf) -> list[Piece[Flow]]:
    """All pieces, as they leave, looked for at the very instant."""
    pieces: list[Piece[Flow]] = []
    while queue.next_at is not None and queue.next_at <= until and queue.next_at < math.inf:
        pieces += queue.take(now=queue.next_at)
    return pieces


def joined(pieces: list[Piece[Flow]], flow: Flow) -> bytes:
    return b"".join(bytes(piece.data) for piece in pieces if piece.flow is flow)


def test_bytes_trickle_in_order_and_the_last_leaves_when_the_link_says() -> None:
    way = link((1.0, 100_000.0), (0.5, 0.0), (1.0, 400_000.0))
    queue: LinkQueue[Flow] = LinkQueue(way)
    flow, sent = Flow(), bytes(range(256)) * 600
    queue.offer(flow, memoryview(sent), now=0.25)
    pieces = everything(queue)
    assert joined(pieces, flow) == sent
    assert flow.size == 0
    assert pieces[-1].left_at == pytest.approx(way.deliver(len(sent), sent=0.25).complete_at)
    assert not [piece for piece in pieces if 1.0 < piece.left_at <= 1.5]
    for piece in pieces[:-1]:
        seconds = len(piece.data) / (100_000.0 if piece.left_at < 1.0 else 400_000.0)
        assert seconds <= PIECE_SECONDS * 4 + 1e-9  # one was measured out just before the outage


def test_pieces_are_neither_tiny_nor_huge() -> None:
    for rate, size in ((1.0, LEAST_PIECE), (1e12, MOST_PIECE), (1e6, 2000)):
        queue: LinkQueue[Flow] = LinkQueue(link((1.0, rate)))
        queue.offer(Flow(), memoryview(bytes(100_000)), now=0.0)
        assert len(everything(queue)[0].data) == size


def test_looking_late_costs_no_bandwidth() -> None:
    way = link((3.0, 50_000.0), (1.0, 0.0))
    sharp, blunt = LinkQueue[Flow](way), LinkQueue[Flow](way)
    for queue in (sharp, blunt):
        queue.offer(Flow(), memoryview(bytes(20_000)), now=0.0)
    exact = [(bytes(piece.data), piece.left_at) for piece in everything(sharp)]
    late = [(bytes(piece.data), piece.left_at) for piece in blunt.take(now=99.0)]
    assert late == exact


def test_flows_take_turns_whole() -> None:
    queue: LinkQueue[Flow] = LinkQueue(link((1.0, 1e6)))
    first, second = Flow(), Flow()
    queue.offer(first, memoryview(bytes(8_000)), now=0.0)
    queue.offer(second, memoryview(bytes(8_000)), now=0.001)
    queue.offer(first, memoryview(bytes(4_000)), now=0.002)
    pieces = everything(queue)
    assert [piece.flow for piece in pieces] == [first] * 6 + [second] * 4
    assert pieces[5].left_at == pytest.approx(0.012)
    assert pieces[-1].left_at == pytest.approx(0.020)


def test_a_line_that_stood_idle_saves_nothing_up() -> None:
    queue: LinkQueue[Flow] = LinkQueue(link((1.0, 1e6)))
    flow = Flow()
    for now in (0.0, 5.0):
        queue.offer(flow, memoryview(bytes(10_000)), now=now)
        assert everything(queue)[-1].left_at == pytest.approx(now + 0.010)


def test_the_end_of_a_flow_comes_behind_its_bytes() -> None:
    queue: LinkQueue[Flow] = LinkQueue(link((1.0, 1e6), (1.0, 0.0)))
    flow = Flow()
    queue.offer(flow, memoryview(b"x" * 3_000), now=0.0)
    queue.offer(flow, memoryview(b""), now=0.0)
    pieces = everything(queue)
    assert [len(piece.data) for piece in pieces] == [2_000, 1_000, 0]
    assert pieces[-1].left_at == pytest.approx(0.003)
    queue.offer(flow, memoryview(b""), now=1.25)
    assert queue.next_at == 2.0


def test_a_dropped_flow_does_not_hold_up_the_others() -> None:
    queue: LinkQueue[Flow] = LinkQueue(link((1.0, 1e6)))
    gone, second = Flow(), Flow()
    queue.offer(gone, memoryview(bytes(500_000)), now=0.0)
    queue.offer(second, memoryview(bytes(2_000)), now=0.0)
    queue.drop(gone)
    queue.drop(Flow())
    pieces = everything(queue)
    assert [(piece.flow, len(piece.data)) for piece in pieces] == [(gone, 2_000), (second, 2_000)]
    assert gone.size == 0


def test_on_a_link_without_bandwidth_nothing_ever_leaves() -> None:
    queue: LinkQueue[Flow] = LinkQueue(link((1.0, 0.0)))
    queue.offer(Flow(), memoryview(b"x"), now=0.0)
    assert queue.next_at == math.inf
    assert queue.take(now=1e9) == []


steps = st.lists(
    st.tuples(st.floats(0.05, 2.0), st.one_of(st.just(0.0), st.floats(1e3, 1e6))),
    min_size=1,
    max_size=5,
)
offers = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.integers(0, 2), st.integers(1, 40_000)),
    min_size=1,
    max_size=12,
)


@given(steps, offers, st.floats(0.0, 3.0))
def test_no_more_leaves_than_the_trace_moves_and_nothing_is_lost(
    parts: list[tuple[float, float]], sendings: list[tuple[float, int, int]], offset: float
) -> None:
    assume(any(rate for _, rate in parts))
    way = link(*parts, offset=offset)
    queue: LinkQueue[Flow] = LinkQueue(way)
    flows = [Flow(), Flow(), Flow()]
    sent: list[bytes] = [b"", b"", b""]
    pieces: list[Piece[Flow]] = []
    now = 0.0
    for gap, flow_number, size in sendings:
        now += gap
        pieces += everything(queue, until=now)
        data = bytes([len(sent[flow_number]) % 251]) * size
        sent[flow_number] += data
        queue.offer(flows[flow_number], memoryview(data), now=now)
    pieces += everything(queue)
    for flow, bytes_sent in zip(flows, sent, strict=True):
        assert joined(pieces, flow) == bytes_sent
    departures = [piece.left_at for piece in pieces]
    assert departures == sorted(departures)
    through = np.cumsum([len(piece.data) for piece in pieces])
    moved = way.trace.moved(np.array(departures) + offset) - way.trace.moved(offset)
    assert np.all(through <= moved + 1.0)

"""The requests of a scenario: what they carry, in which order, and what they share across cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.lab.simulation import DrawnRequest, SimulatedUpload
from slacktide.lab.simulation.scenario import Cell, build
from slacktide.lab.workloads import Constant

Read = Callable[..., tuple[Cell, ...]]


def drawn(cell: Cell, seed: int = 1) -> list[DrawnRequest]:
    return [item for item in build(cell).items(seed) if isinstance(item, DrawnRequest)]


def uploads(cell: Cell, seed: int = 1) -> list[SimulatedUpload]:
    return [item for item in build(cell).items(seed) if isinstance(item, SimulatedUpload)]


def test_requests_come_in_order_with_ids_of_their_own(read: Read) -> None:
    application = "applications.app={model: m, arrivals: 'constant:50', lengths: 'constant:5'}"
    drawn_requests = drawn(read(application)[0])
    arrivals = [request.arrival for request in drawn_requests]
    assert arrivals == sorted(arrivals)
    assert [request.id for request in drawn_requests] == list(range(len(drawn_requests)))
    assert {request.application for request in drawn_requests} == {"short", "long", "app"}
    assert {request.client for request in drawn_requests} == {"web", "app"}
    assert sum(request.client == "app" for request in drawn_requests) == 100


def test_a_mode_gives_length_and_application(read: Read) -> None:
    for request in drawn(read()[0]):
        assert (request.application, request.length) in {("short", 3.0), ("long", 17.0)}
        assert request.deadline == pytest.approx(request.arrival + 0.040)
        assert request.work_hint is None


def test_best_effort_is_ordered_by_its_patience(read: Read) -> None:
    for request in drawn(read("applications.web.slo=none")[0]):
        assert request.best_effort
        assert request.deadline == pytest.approx(request.arrival + 1.0)


def test_rows_and_penalty(read: Read) -> None:
    drawn_requests = drawn(read("applications.web.rows=[1, 2]", "applications.web.penalty=3")[0])
    assert {request.rows for request in drawn_requests} == {1, 2}
    assert {request.penalty for request in drawn_requests} == {3.0}


def test_hints_are_exact_off_or_claimed(read: Read) -> None:
    assert all(r.work_hint == r.length for r in drawn(read("applications.web.hint=exact")[0]))
    off = drawn(read("applications.web.hint={error: 0.3}")[0])
    ratios = [r.work_hint / r.length for r in off if r.work_hint is not None]
    assert np.std(np.log(ratios)) == pytest.approx(0.3, rel=0.2)
    assert abs(np.mean(np.log(ratios))) < 0.1
    claimed = drawn(read("applications.web.hint={claim: 3}")[0])
    assert {r.work_hint for r in claimed} == {3.0}


def test_a_link_announces_at_the_first_byte_and_takes_its_time(read: Read) -> None:
    link = "applications.web.link={bandwidth: 1MB, rtt: 4ms, payload: 10kB}"
    sent_uploads = uploads(read(link)[0])
    plain = drawn(read()[0])
    assert len(sent_uploads) == len(plain)
    for upload, request in zip(sent_uploads, plain, strict=True):
        assert upload.request is not None
        assert upload.arrival == upload.request.arrival == pytest.approx(request.arrival + 0.002)
        assert upload.complete_at == pytest.approx(request.arrival + 0.012)
        assert upload.notice.complete_at == upload.complete_at
        assert upload.notice.payload_bytes == 10_000
        # The deadline is end to end: what the way there and back takes is not the server's.
        assert upload.request.deadline == pytest.approx(request.deadline - 0.002)
        assert upload.request.network_time == pytest.approx(0.002)


TRACE = "time_s,bandwidth_mbps\n0,8\n0.5,0\n1,0.8\n1.5,8\n"
"""1 MB/s for half a second, an outage of as long, a tenth for as long, and 1 MB/s again."""


def test_a_link_of_a_trace_is_waited_for_in_an_outage(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    link = "applications.web.link={trace: t.csv, rtt: 4ms, payload: 10kB}"
    sent_uploads = uploads(read(link)[0])
    by_id = sorted(sent_uploads, key=lambda upload: upload.notice.id)
    assert [upload.arrival for upload in by_id] == sorted(upload.arrival for upload in sent_uploads)
    waited = 0
    for upload in sent_uploads:
        request = upload.request
        assert request is not None
        sent = request.arrival - request.network_time
        assert request.deadline == pytest.approx(sent + 0.040 - 0.002)
        if 0.5 <= sent < 1.0:
            waited += 1
            assert request.arrival == pytest.approx(1.002)
        else:
            assert request.network_time == pytest.approx(0.002)
        if sent < 0.48 or sent >= 1.5:
            assert upload.complete_at == pytest.approx(sent + 0.012)
        if 1.0 <= sent < 1.35:
            assert upload.complete_at == pytest.approx(sent + 0.102)
    assert 30 < waited < 70
    # The server believes what it has measured: 100 Mbit/s at first, soon what there is.
    assert sent_uploads[0].notice.complete_at == pytest.approx(
        sent_uploads[0].arrival + 10_000 / 12.5e6
    )
    settled = [upload for upload in sent_uploads if 0.3 < upload.arrival < 0.48]
    for upload in settled:
        assert upload.notice.complete_at == pytest.approx(upload.complete_at)


def test_requests_that_share_a_link_queue_for_it(read: Read) -> None:
    link = "applications.web.link={bandwidth: 1MB, rtt: 4ms, payload: 12kB, shared: true}"
    sent_uploads = uploads(read(link)[0])
    ends = [upload.complete_at for upload in sent_uploads]
    assert ends == sorted(ends)
    assert min(np.diff(ends)) >= 0.012 - 1e-9
    late = [upload.request for upload in sent_uploads if upload.request is not None]
    assert max(request.network_time for request in late) > 0.05
    for request in late:
        sent = request.arrival - request.network_time
        assert request.deadline == pytest.approx(sent + 0.040 - 0.002)


def test_drawn_links_are_drawn_from_their_own_seed(read: Read) -> None:
    def ends(trace: str) -> list[float]:
        link = f"applications.web.link={{trace: '{trace}', payload: 10kB}}"
        return [upload.complete_at for upload in uploads(read(link)[0])]

    assert ends("4g:seed=1") == ends("4g:seed=1") != ends("4g:seed=2")


def test_notice_announces_so_long_before(read: Read) -> None:
    for upload, request in zip(
        uploads(read("applications.web.notice=3ms")[0]), drawn(read()[0]), strict=True
    ):
        assert upload.request == request
        assert upload.complete_at == request.arrival
        assert upload.arrival == pytest.approx(max(0.0, request.arrival - 0.003))


def test_cells_with_equal_settings_share_their_draws(read: Read) -> None:
    base = drawn(read()[0])
    slower = drawn(read("applications.web.slo=uniform:20ms:90ms", "scheduler=fifo")[0])
    assert [(r.arrival, r.length) for r in base] == [(r.arrival, r.length) for r in slower]
    assert [r.arrival for r in base] != [r.arrival for r in drawn(read()[0], seed=2)]
    longer = drawn(read("duration=3s")[0])
    assert [(r.arrival, r.length) for r in longer][: len(base)] == [
        (r.arrival, r.length) for r in base
    ]


def test_requests_are_drawn_as_they_are_needed(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run of 36 million of them would hold them all before the first."""
    pulled: list[int] = []
    whole = Constant.chunks

    def counted(self: Constant, *args: Any) -> Iterator[Any]:
        for piece in whole(self, *args):
            pulled.append(piece.size)
            yield piece

    monkeypatch.setattr(Constant, "chunks", counted)
    hour = read("applications.web.arrivals=constant:10000", "duration=1h")[0]
    first_items = [*islice(build(hour).items(1), 10_000)]
    assert [item.id for item in first_items if isinstance(item, DrawnRequest)] == [*range(10_000)]
    assert sum(pulled) < 10_000 + 4 * max(pulled)


def test_together_they_are_those_of_each_application_by_itself(read: Read, tmp_path: Path) -> None:
    """In the order of their first bytes; those of one instant in the order of the applications.
    There are more than are drawn at a time, and an outage ends for many at once."""
    (tmp_path / "t.csv").write_text(TRACE)
    common = "model: m, lengths: 'modes:short=3~1,long=17~1', slo: 40ms"
    apps = {
        "steady": f"{{{common}, arrivals: 'constant:500', rows: [1, 2]}}",
        "again": f"{{{common}, arrivals: 'constant:500', hint: {{error: 0.3}}}}",
        "link": f"{{{common}, arrivals: 'poisson:500', link: {{trace: t.csv, payload: 10kB}}}}",
        "notice": f"{{{common}, arrivals: 'gamma:500:cv=2', notice: 30ms}}",
    }

    def items(*names: str) -> list[Any]:
        stated = [f"applications.{name}={apps[name]}" for name in names]
        return [*build(read("applications={}", "duration=8s", *stated)[0]).items(3)]

    def request(item: Any) -> DrawnRequest:
        drawn_request: DrawnRequest = item.request if isinstance(item, SimulatedUpload) else item
        return drawn_request

    together = items(*apps)
    keys = [(item.arrival, [*apps].index(request(item).client)) for item in together]
    assert keys == sorted(keys)
    assert [request(item).id for item in together] == [*range(len(together))]
    for name in apps:
        alone = items(name)
        assert len(alone) > 3_000
        mine = [item for item in together if request(item).client == name]
        for single, joint in zip(alone, mine, strict=True):
            assert replace(request(single), id=0) == replace(request(joint), id=0)
            if isinstance(single, SimulatedUpload):
                assert single.complete_at == joint.complete_at
                assert replace(single.notice, id=0) == replace(joint.notice, id=0)


def test_a_recorded_trace_keeps_times_lengths_and_owners(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,length,application\n0.1,3,a\n0.2,9,b\n9,1,a\n")
    cell = read("applications.web.arrivals=trace:t.csv", "applications.web.lengths=trace:t.csv")[0]
    assert [(r.arrival, r.length, r.application) for r in drawn(cell)] == [
        (0.1, 3.0, "a"),
        (0.2, 9.0, "b"),
    ]

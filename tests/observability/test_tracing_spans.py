"""Spans of answered requests, as OpenTelemetry's own SDK records and sends them."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slacktide.domain import Outcome, Reason
from slacktide.observability.observers import AnsweredRequest, Observers
from slacktide.observability.tracing import (
    RequestTracer,
    TracingUnavailable,
    open_tracer,
)
from slacktide.wire.calls import CallContext

MANUAL = Path(__file__).parents[2] / "docs" / "tracing.md"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
WALL = 1_700_000_000 * 10**9


def request(
    reason: Reason = Reason.ON_TIME,
    *,
    transport: str = "http",
    traceparent: str | None = None,
    version_named: bool = False,
    request_id: str = "",
    has_result: bool | None = None,
) -> AnsweredRequest:
    """First byte at 100 s, 20 ms in the queue, 10 ms in the batch, if it ran at all."""
    context = CallContext(100.0, "10.0.0.7", transport, None, "from-header", traceparent)
    ran = reason.kind.value in ("served", "late")
    outcome = Outcome(
        reason,
        100.03,
        0.02 if ran else 0.03,
        0.01 if ran else 0.0,
        4 if ran else 0,
        0.5,
    )
    return AnsweredRequest(
        context,
        "mlp",
        "2",
        version_named,
        request_id,
        2,
        outcome,
        ran if has_result is None else has_result,
    )


class Recorder:
    """A tracer at 110 s of a monotonic clock, when the wall clock says WALL + 10 s."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = RequestTracer(
            SimpleSpanProcessor(self.exporter),
            clock=lambda: 110.0,
            wall_ns=lambda: WALL + 10 * 10**9,
        )

    def spans(self, answered: AnsweredRequest) -> list[ReadableSpan]:
        """The server's span, then its children, the last first: children finish before it."""
        self.exporter.clear()
        self.tracer.answered(answered)
        return list(reversed(self.exporter.get_finished_spans()))

    def server(self, answered: AnsweredRequest) -> ReadableSpan:
        return self.spans(answered)[0]


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.tracer.shutdown()


def by_name(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def milliseconds(span: ReadableSpan) -> tuple[float, float]:
    """Start and end since the first byte's wall time."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - WALL) / 1e6, (span.end_time - WALL) / 1e6


def test_a_request_is_a_span_with_its_times_in_queue_and_batch(recorder: Recorder) -> None:
    spans = by_name(recorder.spans(request()))
    assert list(spans) == ["POST /v2/models/{model}/infer", "compute", "queue"]
    server = spans["POST /v2/models/{model}/infer"]
    assert server.kind is SpanKind.SERVER
    assert milliseconds(server) == pytest.approx((0.0, 30.0), abs=1e-3)
    assert milliseconds(spans["queue"]) == pytest.approx((0.0, 20.0), abs=1e-3)
    assert milliseconds(spans["compute"]) == pytest.approx((20.0, 30.0), abs=1e-3)
    for child in (spans["queue"], spans["compute"]):
        assert child.parent is not None
        assert child.parent.span_id == server.context.span_id
    assert dict(spans["compute"].attributes or {}) == {"slacktide.batch_rows": 4}


def test_stages_of_a_pipeline_are_spans_with_what_was_left_of_their_time(
    recorder: Recorder,
) -> None:
    ended = {
        "street": Outcome(Reason.ON_TIME, 100.02, 0.005, 0.015, 1, 0.03),
        "brand": Outcome(Reason.ON_TIME, 100.5, 0.001, 0.009, 4),
    }
    spans = by_name(recorder.spans(replace(request(), stages=ended)))
    assert milliseconds(spans["stage street"]) == pytest.approx((0.0, 20.0), abs=1e-3)
    assert dict(spans["stage street"].attributes or {}) == {
        "slacktide.batch_rows": 1,
        "slacktide.budget_at_completion": 0.03,
    }
    assert milliseconds(spans["stage brand"])[1] == pytest.approx(30.0, abs=1e-3)  # its parent's
    assert spans["stage brand"].parent is not None


def test_attributes_over_http(recorder: Recorder) -> None:
    server = recorder.server(request(version_named=True, request_id="r-1"))
    route = "/v2/models/{model}/versions/{version}/infer"
    assert server.name == f"POST {route}"
    assert dict(server.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": 200,
        "client.address": "10.0.0.7",
        "triton.model_name": "mlp",
        "triton.model_version": "2",
        "triton.request_id": "r-1",
        "triton.trace_id": f"{server.context.trace_id:032x}",
        "slacktide.outcome": "served",
        "slacktide.reason": "on_time",
        "slacktide.rows": 2,
        "slacktide.budget_at_completion": 0.5,
    }


@pytest.mark.parametrize(
    ("transport", "method"), [("grpc", "ModelInfer"), ("grpc-stream", "ModelStreamInfer")]
)
def test_attributes_over_grpc(recorder: Recorder, transport: str, method: str) -> None:
    server = recorder.server(request(Reason.QUEUE_FULL, transport=transport))
    assert server.name == f"inference.GRPCInferenceService/{method}"
    attributes = dict(server.attributes or {})
    assert attributes["rpc.system.name"] == "grpc"
    assert attributes["rpc.method"] == server.name
    assert attributes["rpc.response.status_code"] == "RESOURCE_EXHAUSTED"
    assert attributes["triton.request_id"] == "from-header"
    assert not any(name.startswith("http.") for name in attributes)


def test_every_attribute_is_in_the_manual(recorder: Recorder) -> None:
    names: set[str] = set()
    for transport in ("http", "grpc"):
        for reason in (Reason.ON_TIME, Reason.CRASHED):
            for span in recorder.spans(request(reason, transport=transport, traceparent=PARENT)):
                names.update(span.attributes or {})
    rows = "".join(re.findall(r"^\| (`[a-z]+\.[^|]*)", MANUAL.read_text(), re.MULTILINE))
    assert names == set(re.findall(r"`([a-z_.]+)`", rows))


@pytest.mark.parametrize(
    ("reason", "has_result", "status", "is_error"),
    [
        (Reason.ON_TIME, True, 200, False),
        (Reason.AFTER_DEADLINE, True, 200, False),
        (Reason.AFTER_DEADLINE, False, 504, True),
        (Reason.EXPIRED, False, 504, True),
        (Reason.QUEUE_FULL, False, 429, False),
        (Reason.BAD_INPUT, False, 400, False),
        (Reason.RUNTIME_ERROR, False, 500, True),
        (Reason.DISCONNECTED, False, 499, False),
    ],
)
def test_only_what_the_server_failed_at_is_an_error(
    recorder: Recorder, reason: Reason, has_result: bool, status: int, is_error: bool
) -> None:
    server = recorder.server(request(reason, has_result=has_result))
    attributes = dict(server.attributes or {})
    assert attributes["http.response.status_code"] == status
    assert (server.status.status_code is StatusCode.ERROR) == is_error
    assert attributes.get("error.type") == (str(status) if is_error else None)


def test_the_caller_is_the_parent(recorder: Recorder) -> None:
    server = recorder.server(request(traceparent=PARENT))
    assert f"{server.context.trace_id:032x}" == TRACE
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == SPAN
    attributes = dict(server.attributes or {})
    assert (attributes["triton.trace_id"], attributes["triton.trace_parent_id"]) == (TRACE, SPAN)


def test_a_caller_that_does_not_sample_is_obeyed(recorder: Recorder) -> None:
    assert recorder.spans(request(traceparent=PARENT[:-1] + "0")) == []


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_an_invalid_parent_starts_a_new_trace(recorder: Recorder, traceparent: str | None) -> None:
    server = recorder.server(request(traceparent=traceparent))
    assert server.parent is None
    assert f"{server.context.trace_id:032x}" != TRACE


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")))
def test_no_parent_can_hurt(recorder: Recorder, traceparent: str) -> None:
    recorder.tracer.answered(request(traceparent=traceparent))
    assert recorder.server(request()).name.startswith("POST")


def test_a_request_that_never_ran_has_no_compute(recorder: Recorder) -> None:
    spans = by_name(recorder.spans(request(Reason.EXPIRED)))
    assert list(spans) == ["POST /v2/models/{model}/infer", "queue"]
    assert milliseconds(spans["queue"]) == pytest.approx((0.0, 30.0), abs=1e-3)
    at_the_door = request(Reason.QUEUE_FULL)
    at_the_door = replace(at_the_door, outcome=replace(at_the_door.outcome, queue_s=0.0))
    assert len(recorder.spans(at_the_door)) == 1


def test_clocks_that_disagree_keep_children_within_their_parent(recorder: Recorder) -> None:
    odd = request()
    odd = replace(odd, outcome=replace(odd.outcome, at=99.0, queue_s=5.0))
    for span in recorder.spans(odd):
        assert milliseconds(span) == (0.0, 0.0)


def test_texts_of_clients_are_made_printable(recorder: Recorder) -> None:
    server = recorder.server(request(request_id="a\nb" + "x" * 1000))
    value = str((server.attributes or {})["triton.request_id"])
    assert value.startswith(r"a\nbxxx")
    assert len(value) < 300


class Collector(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP."""

    received: list[tuple[str, ExportTraceServiceRequest]]

    def do_POST(self) -> None:  # http.server's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    received: list[tuple[str, ExportTraceServiceRequest]] = []
    handler = type("Handler", (Collector,), {"received": received})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_shutdown_sends_what_is_left_to_the_endpoint(
    collector: tuple[str, list[tuple[str, ExportTraceServiceRequest]]],
) -> None:
    endpoint, received = collector
    tracer = open_tracer(endpoint)
    tracer.answered(request(traceparent=PARENT))
    assert tracer.shutdown(timeout_s=60.0)
    ((path, sent),) = received
    assert path == "/v1/traces"
    (resource_spans,) = sent.resource_spans
    service = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
    assert service["service.name"] == "slacktide"
    spans = resource_spans.scope_spans[0].spans
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert len(spans) == 3


def test_shutdown_does_not_wait_for_ever() -> None:
    class Stuck(SpanProcessor):
        released = threading.Event()

        def shutdown(self) -> None:
            self.released.wait()

    stuck = Stuck()
    tracer = RequestTracer(stuck)
    assert not tracer.shutdown(timeout_s=0.01)
    stuck.released.set()


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", ""])
def test_an_endpoint_must_be_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="--trace-endpoint: expected http://host:port"):
        open_tracer(endpoint)


@pytest.mark.parametrize("missing", ["sdk.trace", "exporter.otlp.proto.http.trace_exporter"])
def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.{missing}", None)
    with pytest.raises(TracingUnavailable, match=r"pip install 'slacktide\[otel\]'"):
        open_tracer("http://127.0.0.1:4318")


class Broken:
    def __init__(self) -> None:
        self.told = 0

    def answered(self, request: AnsweredRequest) -> None:
        self.told += 1
        raise ValueError("no")


class Keeps:
    def __init__(self) -> None:
        self.requests: list[AnsweredRequest] = []

    def answered(self, request: AnsweredRequest) -> None:
        self.requests.append(request)


def test_an_observer_that_raises_is_logged_once_and_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, keeps = Broken(), Keeps()
    observers = Observers(broken, keeps)
    with caplog.at_level(logging.ERROR, logger="slacktide.server"):
        observers.notify(request())
        observers.notify(request())
    assert broken.told == 1
    assert len(keeps.requests) == 2
    assert len(caplog.records) == 1
    assert observers


def test_without_observers_there_is_nothing_to_do() -> None:
    observers = Observers()
    assert not observers
    assert not observers

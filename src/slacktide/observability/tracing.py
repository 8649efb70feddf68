"""OpenTelemetry traces: a span for every answered request, with children for its time in the queue
and in the batch, and for the stages of a pipeline (docs/tracing.md).

Spans are made when the request is answered, from the times in its outcome, so that requests carry
no tracing state. The extra `otel` is required, and is loaded only when a tracer is made.
OpenTelemetry's global provider is left to the embedding program.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slacktide._version import __version__
from slacktide.observability.logs import printable
from slacktide.observability.observers import AnsweredRequest
from slacktide.wire.status import WireStatus, status_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

_SERVICE = "inference.GRPCInferenceService"
_RPC_METHODS = {"grpc": f"{_SERVICE}/ModelInfer", "grpc-stream": f"{_SERVICE}/ModelStreamInfer"}
_TRACES_PATH = "/v1/traces"


class TracingUnavailable(RuntimeError):  # noqa: N818  # a state of the installation
    """OpenTelemetry is not installed. The message names the remedy."""


def open_tracer(endpoint: str, *, triton_strict: bool = False) -> RequestTracer:
    """Make a tracer that sends spans in batches, from its own thread, to an OTLP/HTTP endpoint. A
    URL without a path, such as `http://collector:4318`, gets the usual path. Raises
    TracingUnavailable, and ValueError unless it is an HTTP URL."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _unavailable(error) from error
    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(endpoint)))
    return RequestTracer(processor, triton_strict=triton_strict)


class RequestTracer:
    """A `RequestObserver` that makes spans. `shutdown` sends the remaining ones."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        triton_strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`clock`: the clock of the requests' times. Raises TracingUnavailable."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise _unavailable(error) from error
        service = os.environ.get("OTEL_SERVICE_NAME") or "slacktide"
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("slacktide", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._in_span = set_span_in_context
        self._server = SpanKind.SERVER
        self._error = StatusCode.ERROR
        self._strict = triton_strict
        self._clock = clock
        self._wall_ns = wall_ns

    def answered(self, request: AnsweredRequest) -> None:
        """Make the spans of a request: about 0.1 ms, less if its caller does not sample."""
        context, outcome = request.context, request.outcome
        # Computed each time, because the wall clock may be adjusted.
        offset_ns = self._wall_ns() - round(self._clock() * 1e9)

        def at(seconds: float) -> int:
            return round(seconds * 1e9) + offset_ns

        begin = context.first_byte
        end = max(begin, outcome.at)
        status = status_of(
            outcome.reason, has_result=request.has_result, triton_strict=self._strict
        )
        # An invalid or missing parent gives an empty context, which starts a new trace.
        headers = {"traceparent": context.traceparent} if context.traceparent else {}
        span = self._tracer.start_span(
            _name(request),
            self._propagator.extract(headers),
            self._server,
            _attributes(request, status),
            start_time=at(begin),
        )
        if span.is_recording():
            span_context = span.get_span_context()
            span.set_attribute("triton.trace_id", f"{span_context.trace_id:032x}")
            parent = getattr(span, "parent", None)
            if parent is not None:
                span.set_attribute("triton.trace_parent_id", f"{parent.span_id:016x}")
            if status.http >= 500:
                span.set_attribute("error.type", _code(request, status))
                span.set_status(self._error, outcome.detail or outcome.reason.label)
            self._children(span, request, begin, end, at)
        span.end(at(end))

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """Send the remaining spans. Returns False if that takes longer than `timeout_s`. Blocks, so
        call it off the event loop."""
        # The exporter retries for half a minute, which cannot be configured: abandon it.
        thread = threading.Thread(target=self._provider.shutdown, name="otel-flush", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _children(
        self,
        parent: Span,
        request: AnsweredRequest,
        begin: float,
        end: float,
        at: Callable[[float], int],
    ) -> None:
        """Make the child spans: stages, `queue` and, if the request ran, `compute`. All end within
        their parent."""
        outcome = request.outcome
        context = self._in_span(parent)
        for stage, ended in request.stages.items():
            stage_end = min(ended.at, end)
            stage_begin = max(begin, stage_end - ended.queue_s - ended.compute_s)
            attributes: dict[str, AttributeValue] = {"slacktide.batch_rows": ended.batch_rows}
            if ended.budget_s is not None:
                attributes["slacktide.budget_at_completion"] = ended.budget_s
            span = self._tracer.start_span(
                f"stage {stage}",
                context,
                attributes=attributes,
                start_time=at(min(stage_begin, stage_end)),
            )
            span.end(at(stage_end))
        ran = outcome.batch_rows > 0
        started = min(begin + outcome.queue_s, end)
        if ran or outcome.queue_s > 0.0:
            queue = self._tracer.start_span("queue", context, start_time=at(begin))
            queue.end(at(started))
        if ran:
            rows: dict[str, AttributeValue] = {"slacktide.batch_rows": outcome.batch_rows}
            compute = self._tracer.start_span(
                "compute", context, attributes=rows, start_time=at(started)
            )
            compute.end(at(min(started + outcome.compute_s, end)))


def _unavailable(error: ImportError) -> TracingUnavailable:
    return TracingUnavailable(
        f"traces need OpenTelemetry: pip install 'slacktide[otel]' ({error.name} is missing)"
    )


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--trace-endpoint: expected http://host:port, got {endpoint!r}")
    if parts.path in ("", "/"):
        return parts._replace(path=_TRACES_PATH).geturl()
    return endpoint


def _route(request: AnsweredRequest) -> str:
    version = "/versions/{version}" if request.version_named else ""
    return f"/v2/models/{{model}}{version}/infer"


def _name(request: AnsweredRequest) -> str:
    return _RPC_METHODS.get(request.context.transport) or f"POST {_route(request)}"


def _code(request: AnsweredRequest, status: WireStatus) -> str:
    return status.grpc if request.context.transport in _RPC_METHODS else str(status.http)


def _attributes(request: AnsweredRequest, status: WireStatus) -> dict[str, AttributeValue]:
    """Attributes by OpenTelemetry's conventions, by Triton's names, and our own."""
    context, outcome = request.context, request.outcome
    attributes: dict[str, AttributeValue] = {
        "client.address": context.client,
        "triton.model_name": request.model,
        "triton.model_version": request.version,
        "slacktide.rows": request.rows,
        "slacktide.outcome": outcome.kind.value,
        "slacktide.reason": outcome.reason.label,
    }
    method = _RPC_METHODS.get(context.transport)
    if method is None:
        attributes["http.request.method"] = "POST"
        attributes["http.route"] = _route(request)
        attributes["http.response.status_code"] = status.http
    else:
        attributes["rpc.system.name"] = "grpc"
        attributes["rpc.method"] = method
        attributes["rpc.response.status_code"] = status.grpc
    request_id = request.request_id or context.request_id
    if request_id:
        attributes["triton.request_id"] = printable(request_id)
    if outcome.budget_s is not None:
        attributes["slacktide.budget_at_completion"] = outcome.budget_s
    return attributes

"""The routes of the Open Inference Protocol over HTTP, as a table.

A table entry is (method, pattern, handler, group); `Router` does the matching and `admission`
guards them all.
"""

from __future__ import annotations

from collections.abc import Callable

from slacktide.frontends.http.control import (
    ControlHandlers,
    absent,
    fixed,
    nothing,
    rendered,
    unsupported,
)
from slacktide.frontends.http.infer import InferEndpoint
from slacktide.frontends.http.router import Handler, HttpRoute, Receiver
from slacktide.frontends.ports import ControlPlane, DataPlane, EndpointGroup
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker

TRACE_SETTINGS = {"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0", "trace_file": ""}
"""What the trace extension reports: its kind of tracing is not there, so it is off."""
LOG_SETTINGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
"""What the logging extension reports: logging is set at start, to standard error."""


def inference_routes(
    data: DataPlane, control: ControlPlane, settings: HttpSettings, unpacker: Unpacker | None = None
) -> tuple[HttpRoute, ...]:
    """Every route of the inference port."""
    handlers = ControlHandlers(control)
    infer = InferEndpoint(data, settings, unpacker or Unpacker())
    generate = unsupported("the generate extension")
    return (
        HttpRoute("GET", "/v2/health/live", handlers.live, EndpointGroup.HEALTH),
        HttpRoute("GET", "/v2/health/ready", handlers.ready, EndpointGroup.HEALTH),
        HttpRoute("GET", "/v2", handlers.server_metadata, EndpointGroup.METADATA),
        HttpRoute("GET", "/v2/models/stats", handlers.all_statistics, EndpointGroup.STATISTICS),
        *_for_model("GET", "/ready", handlers.model_ready, EndpointGroup.HEALTH),
        *_for_model("GET", "", handlers.model_metadata, EndpointGroup.METADATA),
        *_for_model("GET", "/config", handlers.model_config, EndpointGroup.CONFIG),
        *_for_model("GET", "/stats", handlers.model_statistics, EndpointGroup.STATISTICS),
        *_for_model("POST", "/infer", infer, EndpointGroup.INFERENCE),
        *_for_model("POST", "/generate", generate, EndpointGroup.INFERENCE),
        *_for_model("POST", "/generate_stream", generate, EndpointGroup.INFERENCE),
        *_repository(handlers),
        *_shared_memory("system"),
        *_shared_memory("cuda"),
        *_settings(),
    )


def metrics_routes(render: Callable[[], tuple[int, str, bytes]]) -> tuple[HttpRoute, ...]:
    """The one route of the metrics port; `render` returns status, content type and body."""
    return (HttpRoute("GET", "/metrics", rendered(render), EndpointGroup.METRICS),)


def _for_model(
    method: str, suffix: str, handler: Handler | Receiver, group: EndpointGroup
) -> tuple[HttpRoute, ...]:
    return (
        HttpRoute(method, "/v2/models/{model}" + suffix, handler, group),
        HttpRoute(method, "/v2/models/{model}/versions/{version}" + suffix, handler, group),
    )


def _repository(handlers: ControlHandlers) -> tuple[HttpRoute, ...]:
    base, control = "/v2/repository", EndpointGroup.CONTROL
    named = unsupported("naming a repository")
    return (
        HttpRoute("POST", f"{base}/index", handlers.index, EndpointGroup.REPOSITORY),
        HttpRoute("POST", f"{base}/models/{{model}}/load", handlers.load, control),
        HttpRoute("POST", f"{base}/models/{{model}}/unload", handlers.unload, control),
        HttpRoute("POST", f"{base}/{{repository}}/index", named, EndpointGroup.REPOSITORY),
        HttpRoute("POST", f"{base}/{{repository}}/models/{{model}}/load", named, control),
        HttpRoute("POST", f"{base}/{{repository}}/models/{{model}}/unload", named, control),
    )


def _shared_memory(kind: str) -> tuple[HttpRoute, ...]:
    """Regions cannot be registered, so there are none: listing and dropping all is easily done."""
    base, group = f"/v2/{kind}sharedmemory", EndpointGroup.SHARED_MEMORY
    register = unsupported(f"{kind} shared memory (there is no flag to allow it)")
    return (
        HttpRoute("GET", f"{base}/status", fixed([]), group),
        HttpRoute("GET", f"{base}/region/{{region}}/status", absent("region", "region"), group),
        HttpRoute("POST", f"{base}/region/{{region}}/register", register, group),
        HttpRoute("POST", f"{base}/unregister", nothing, group),
        HttpRoute("POST", f"{base}/region/{{region}}/unregister", nothing, group),
    )


def _settings() -> tuple[HttpRoute, ...]:
    trace = unsupported("changing trace settings at run time")
    logging = unsupported("changing log settings at run time")
    model = "/v2/models/{model}/trace/setting"
    return (
        HttpRoute("GET", "/v2/trace/setting", fixed(TRACE_SETTINGS), EndpointGroup.TRACE),
        HttpRoute("POST", "/v2/trace/setting", trace, EndpointGroup.TRACE),
        HttpRoute("GET", model, fixed(TRACE_SETTINGS), EndpointGroup.TRACE),
        HttpRoute("POST", model, trace, EndpointGroup.TRACE),
        HttpRoute("GET", "/v2/logging", fixed(LOG_SETTINGS), EndpointGroup.LOGGING),
        HttpRoute("POST", "/v2/logging", logging, EndpointGroup.LOGGING),
    )

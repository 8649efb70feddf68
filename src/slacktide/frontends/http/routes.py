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
from slacktide.frontends.http.router import Handler, Receiver, Route
from slacktide.frontends.ports import ControlPlane, DataPlane, Group
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
) -> tuple[Route, ...]:
    """Every route of the inference port."""
    handlers = ControlHandlers(control)
    infer = InferEndpoint(data, settings, unpacker or Unpacker())
    generate = unsupported("the generate extension")
    return (
        Route("GET", "/v2/health/live", handlers.live, Group.HEALTH),
        Route("GET", "/v2/health/ready", handlers.ready, Group.HEALTH),
        Route("GET", "/v2", handlers.server_metadata, Group.METADATA),
        Route("GET", "/v2/models/stats", handlers.all_statistics, Group.STATISTICS),
        *_for_model("GET", "/ready", handlers.model_ready, Group.HEALTH),
        *_for_model("GET", "", handlers.model_metadata, Group.METADATA),
        *_for_model("GET", "/config", handlers.model_config, Group.CONFIG),
        *_for_model("GET", "/stats", handlers.model_statistics, Group.STATISTICS),
        *_for_model("POST", "/infer", infer, Group.INFERENCE),
        *_for_model("POST", "/generate", generate, Group.INFERENCE),
        *_for_model("POST", "/generate_stream", generate, Group.INFERENCE),
        *_repository(handlers),
        *_shared_memory("system"),
        *_shared_memory("cuda"),
        *_settings(),
    )


def metrics_routes(render: Callable[[], tuple[int, str, bytes]]) -> tuple[Route, ...]:
    """The one route of the metrics port; `render` returns status, content type and body."""
    return (Route("GET", "/metrics", rendered(render), Group.METRICS),)


def _for_model(
    method: str, suffix: str, handler: Handler | Receiver, group: Group
) -> tuple[Route, ...]:
    return (
        Route(method, "/v2/models/{model}" + suffix, handler, group),
        Route(method, "/v2/models/{model}/versions/{version}" + suffix, handler, group),
    )


def _repository(handlers: ControlHandlers) -> tuple[Route, ...]:
    base, control = "/v2/repository", Group.CONTROL
    named = unsupported("naming a repository")
    return (
        Route("POST", f"{base}/index", handlers.index, Group.REPOSITORY),
        Route("POST", f"{base}/models/{{model}}/load", handlers.load, control),
        Route("POST", f"{base}/models/{{model}}/unload", handlers.unload, control),
        Route("POST", f"{base}/{{repository}}/index", named, Group.REPOSITORY),
        Route("POST", f"{base}/{{repository}}/models/{{model}}/load", named, control),
        Route("POST", f"{base}/{{repository}}/models/{{model}}/unload", named, control),
    )


def _shared_memory(kind: str) -> tuple[Route, ...]:
    """Regions cannot be registered, so there are none: listing and dropping all is easily done."""
    base, group = f"/v2/{kind}sharedmemory", Group.SHARED_MEMORY
    register = unsupported(f"{kind} shared memory (there is no flag to allow it)")
    return (
        Route("GET", f"{base}/status", fixed([]), group),
        Route("GET", f"{base}/region/{{region}}/status", absent("region", "region"), group),
        Route("POST", f"{base}/region/{{region}}/register", register, group),
        Route("POST", f"{base}/unregister", nothing, group),
        Route("POST", f"{base}/region/{{region}}/unregister", nothing, group),
    )


def _settings() -> tuple[Route, ...]:
    trace = unsupported("changing trace settings at run time")
    logging = unsupported("changing log settings at run time")
    model = "/v2/models/{model}/trace/setting"
    return (
        Route("GET", "/v2/trace/setting", fixed(TRACE_SETTINGS), Group.TRACE),
        Route("POST", "/v2/trace/setting", trace, Group.TRACE),
        Route("GET", model, fixed(TRACE_SETTINGS), Group.TRACE),
        Route("POST", model, trace, Group.TRACE),
        Route("GET", "/v2/logging", fixed(LOG_SETTINGS), Group.LOGGING),
        Route("POST", "/v2/logging", logging, Group.LOGGING),
    )

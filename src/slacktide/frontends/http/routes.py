"""The table of HTTP routes, and the handlers of all routes but inference.

A handler converts, calls the control plane and converts back. `Router` matches routes and
`HttpContext` guards them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

from slacktide.domain.tensors import TensorSpec
from slacktide.frontends.http.infer import InferEndpoint, target_of
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    error_response,
    json_response,
)
from slacktide.frontends.http.router import Handler, HttpRoute
from slacktide.frontends.ports import ControlPlane, DataPlane, EndpointGroup
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import BadField, ControlError
from slacktide.wire.oip_json import load_object, without_nulls
from slacktide.wire.parameters import unload_dependents

_EMPTY = HttpResponse()
_FILE = "file:"


class ControlHandlers:
    """The control plane over HTTP. Every method is a handler."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    def live(self, request: ClientRequest) -> HttpResponse:
        live = self._control.live()
        return json_response({"live": live}, 200 if live else 503)

    def ready(self, request: ClientRequest) -> HttpResponse:
        ready = self._control.ready()
        return json_response({"ready": ready}, 200 if ready else 503)

    def model_ready(self, request: ClientRequest) -> HttpResponse:
        model, version = target_of(request)
        ready = self._control.model_ready(model, version)
        return json_response({"name": model, "ready": ready}, 200 if ready else 400)

    def server_metadata(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.server_metadata())

    def model_metadata(self, request: ClientRequest) -> HttpResponse:
        model = self._control.describe(*target_of(request))
        return json_response(
            {
                "name": model.name,
                "versions": model.versions,
                "platform": model.platform,
                "inputs": list(map(_spec, model.interface.inputs)),
                "outputs": list(map(_spec, model.interface.outputs)),
                **({"labels": model.labels} if model.labels else {}),
            }
        )

    def model_config(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.config(*target_of(request)))

    def all_statistics(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.statistics(None, None))

    def model_statistics(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.statistics(*target_of(request)))

    def sessions(self, request: ClientRequest) -> HttpResponse:
        return json_response({"sessions": self._control.sessions()})

    def peers(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.peers())

    async def index(self, request: ClientRequest) -> HttpResponse:
        ready = _document(request).get("ready", False)
        if type(ready) is not bool:
            raise BadField("ready", "true or false", ready)
        return json_response(await self._control.repository_index(ready))

    async def load(self, request: ClientRequest) -> HttpResponse:
        await self._control.load(request.head.params["model"], _load_parameters(request))
        return _EMPTY

    async def unload(self, request: ClientRequest) -> HttpResponse:
        dependents = unload_dependents(_parameters(request))
        await self._control.unload(request.head.params["model"], dependents=dependents)
        return _EMPTY


def fixed(document: object) -> Handler:
    """A handler that always answers with `document` as JSON."""
    response = json_response(document)
    return lambda request: response


def nothing(request: ClientRequest) -> HttpResponse:
    """Answer a request that requires no action."""
    return _EMPTY


def unsupported(feature: str) -> Handler:
    """A handler that refuses with 501, naming the missing feature."""

    def refuse(request: ClientRequest) -> HttpResponse:
        raise ControlError("unsupported", f"{feature} is not supported by this server")

    return refuse


def absent(kind: str, parameter: str) -> Handler:
    """A handler that answers 404: there is nothing of this kind."""

    def missing(request: ClientRequest) -> HttpResponse:
        return error_response(404, f"no {kind} named {request.head.params[parameter]!r}")

    return missing


def rendered(render: Callable[[], tuple[int, str, Iterable[bytes]]]) -> Handler:
    """A handler that answers with the status, content type and body that `render` returns. Each
    piece of the body is made in its own turn of the loop."""

    async def handle(request: ClientRequest) -> HttpResponse:
        status, content_type, pieces = render()
        body = []
        for piece in pieces:
            body.append(piece)
            await asyncio.sleep(0)
        return HttpResponse(status, body, content_type.encode())

    return handle


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.wire_name, "shape": spec.shape}


def _document(request: ClientRequest) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    return load_object(request.body) if len(request.body) else {}


def _parameters(request: ClientRequest) -> dict[str, Any]:
    parameters = _document(request).get("parameters", {})
    if type(parameters) is not dict:
        raise BadField("parameters", "an object", parameters)
    return without_nulls(parameters)


def _load_parameters(request: ClientRequest) -> dict[str, Parameter | Buffer]:
    """Parameters of a load call, with files decoded. The control plane decides whether it takes
    files."""
    loaded: dict[str, Parameter | Buffer] = {}
    for name, value in _parameters(request).items():
        if type(value) not in (bool, int, float, str):
            raise BadField(f"parameters.{name}", "a boolean, number or string", value)
        if name.startswith(_FILE):
            try:
                loaded[name] = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError, TypeError):
                raise BadField(f"parameters.{name}", "base64 text", value) from None
        else:
            loaded[name] = value
    return loaded


TRACE_SETTINGS = {"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0", "trace_file": ""}
"""Answer of the trace extension: Triton's tracing is not implemented, so it is off."""
LOG_SETTINGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
"""Answer of the logging extension: logging is set up at start and goes to standard error."""


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
        HttpRoute("GET", "/v2/slacktide/sessions", handlers.sessions, EndpointGroup.STATISTICS),
        HttpRoute("GET", "/v2/slacktide/peers", handlers.peers, EndpointGroup.STATISTICS),
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


def metrics_routes(render: Callable[[], tuple[int, str, Iterable[bytes]]]) -> tuple[HttpRoute, ...]:
    """The only route of the metrics port. `render` returns status, content type and body."""
    return (HttpRoute("GET", "/metrics", rendered(render), EndpointGroup.METRICS),)


def _for_model(
    method: str, suffix: str, handler: Handler | InferEndpoint, group: EndpointGroup
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
    """No region can be registered, so listing finds none and dropping does nothing."""
    base, group = f"/v2/{kind}sharedmemory", EndpointGroup.SHARED_MEMORY
    register = unsupported(f"{kind} shared memory (no flag enables it)")
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

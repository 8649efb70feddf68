"""Handlers for everything that is not inference: each converts, calls the control plane, converts
back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from slacktide.domain.tensors import TensorSpec
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    error_response,
    json_response,
)
from slacktide.frontends.http.router import Handler
from slacktide.frontends.ports import ControlPlane
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import BadField, ControlError
from slacktide.wire.oip_json import load_object

_EMPTY = HttpResponse()
_FILE = "file:"


class ControlHandlers:
    """The control plane in HTTP. Every method is a handler."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    def live(self, request: ClientRequest) -> HttpResponse:
        return _EMPTY if self._control.live() else HttpResponse(503)

    def ready(self, request: ClientRequest) -> HttpResponse:
        return _EMPTY if self._control.ready() else HttpResponse(503)

    def model_ready(self, request: ClientRequest) -> HttpResponse:
        return _EMPTY if self._control.model_ready(*_model(request)) else HttpResponse(400)

    def server_metadata(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.server_metadata())

    def model_metadata(self, request: ClientRequest) -> HttpResponse:
        model = self._control.describe(*_model(request))
        return json_response(
            {
                "name": model.name,
                "versions": model.versions,
                "platform": model.platform,
                "inputs": list(map(_spec, model.interface.inputs)),
                "outputs": list(map(_spec, model.interface.outputs)),
            }
        )

    def model_config(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.config(*_model(request)))

    def all_statistics(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.statistics(None, None))

    def model_statistics(self, request: ClientRequest) -> HttpResponse:
        return json_response(self._control.statistics(*_model(request)))

    def index(self, request: ClientRequest) -> HttpResponse:
        ready = _document(request).get("ready", False)
        if type(ready) is not bool:
            raise BadField("ready", "true or false", ready)
        return json_response(self._control.repository_index(ready))

    async def load(self, request: ClientRequest) -> HttpResponse:
        await self._control.load(request.params["model"], _load_parameters(request))
        return _EMPTY

    async def unload(self, request: ClientRequest) -> HttpResponse:
        # `unload_dependents` is always sent by stock clients; nothing here depends on a model.
        _parameters(request)
        await self._control.unload(request.params["model"])
        return _EMPTY


def fixed(document: object) -> Handler:
    """A handler that always answers this JSON."""
    response = json_response(document)
    return lambda request: response


def nothing(request: ClientRequest) -> HttpResponse:
    """There was nothing to do, and it is done."""
    return _EMPTY


def unsupported(what: str) -> Handler:
    """A handler that refuses: 501, saying what is not there."""

    def refuse(request: ClientRequest) -> HttpResponse:
        raise ControlError("unsupported", f"{what} is not supported by this server")

    return refuse


def absent(what: str, parameter: str) -> Handler:
    """A handler for a single thing of which there are none: 404, naming it."""

    def missing(request: ClientRequest) -> HttpResponse:
        return error_response(404, f"no {what} named {request.params[parameter]!r}")

    return missing


def rendered(render: Callable[[], tuple[int, str, bytes]]) -> Handler:
    """A handler that answers what `render` returns: status, content type, body."""

    def handle(request: ClientRequest) -> HttpResponse:
        status, content_type, body = render()
        return HttpResponse(status, (body,), content_type.encode())

    return handle


def _model(request: ClientRequest) -> tuple[str, str | None]:
    return request.params["model"], request.params.get("version")


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.wire_name, "shape": spec.shape}


def _document(request: ClientRequest) -> dict[str, Any]:
    """The JSON object in the body; an empty body counts as an empty object."""
    return load_object(request.body) if len(request.body) else {}


def _parameters(request: ClientRequest) -> dict[str, Any]:
    parameters = _document(request).get("parameters", {})
    if type(parameters) is not dict:
        raise BadField("parameters", "an object", parameters)
    return parameters


def _load_parameters(request: ClientRequest) -> dict[str, Parameter | Buffer]:
    """Load parameters, files decoded. Whether files are wanted is the control plane's business."""
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

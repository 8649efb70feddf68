"""Reads a server's description of its models: metadata and configuration, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from slacktide._datatypes import BY_NAME
from slacktide.domain import TensorSpec
from slacktide.lab.load.http_connection import error_text, fetch
from slacktide.lab.load.spec import Target, TargetError, Transport, require_grpc
from slacktide.lab.load.tensors import RemoteModel

if TYPE_CHECKING:
    from slacktide.wire.proto import messages as m

_TIMEOUT = 10.0


async def discover(target: Target, model: str, version: str | None) -> RemoteModel:
    """Return the inputs of `model` as its server describes them. Raises TargetError if the server
    cannot be reached, does not know the model, or describes it in a way that cannot be used."""
    ask = _ask_http if target.transport is Transport.HTTP else _ask_grpc
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await ask(target, model, version)
    except TimeoutError:
        raise TargetError(f"{target.url} did not answer within {_TIMEOUT:g} s") from None


async def model_names(target: Target) -> list[str]:
    """Return the names of the models being served (those with statistics). Raises TargetError."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            if target.transport is Transport.HTTP:
                document = await _get(target, "/v2/models/stats", "statistics")
                return sorted({str(model["name"]) for model in document["model_stats"]})
            from slacktide.wire.proto import messages as m

            async with _grpc(target) as call:
                read = m.ModelStatisticsResponse.FromString
                answer = await call("ModelStatistics", m.ModelStatisticsRequest(), read)
                return sorted({model.name for model in answer.model_stats})
    except TimeoutError:
        raise TargetError(f"{target.url} did not answer within {_TIMEOUT:g} s") from None
    except (KeyError, TypeError) as error:
        raise TargetError(f"{target.url}: invalid statistics: {error!r}") from None


async def _ask_http(target: Target, model: str, version: str | None) -> RemoteModel:
    path = f"/v2/models/{quote(model, safe='')}"
    if version is not None:
        path += f"/versions/{quote(version, safe='')}"
    metadata = await _get(target, path, f"model {model!r}")
    status, body = await fetch(target, f"{path}/config")
    config = _json(body, "the configuration") if status == 200 else None
    max_batch = config.get("max_batch_size") if isinstance(config, dict) else None
    try:
        inputs = [
            (str(entry["name"]), str(entry["datatype"]), [int(axis) for axis in entry["shape"]])
            for entry in metadata["inputs"]
        ]
        return _served(model, inputs, None if max_batch is None else int(max_batch))
    except (KeyError, TypeError, ValueError) as error:
        raise TargetError(f"model {model!r}: invalid metadata: {error!r}") from None


async def _ask_grpc(target: Target, model: str, version: str | None) -> RemoteModel:
    from slacktide.wire.proto import messages as m

    model_key = {"name": model, "version": version or ""}
    async with _grpc(target) as call:
        described: m.ModelMetadataResponse = await call(
            "ModelMetadata", m.ModelMetadataRequest(**model_key), m.ModelMetadataResponse.FromString
        )
        max_batch: int | None = None
        with contextlib.suppress(TargetError):  # an extension; not every server has it
            answer = await call(
                "ModelConfig", m.ModelConfigRequest(**model_key), m.ModelConfigResponse.FromString
            )
            max_batch = int(answer.config.max_batch_size)
    inputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in described.inputs]
    return _served(model, inputs, max_batch)


@contextlib.asynccontextmanager
async def _grpc(target: Target) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Yield a function (method, request, parser of the answer) → answer; raises TargetError."""
    require_grpc()
    import grpc.aio

    from slacktide.lab.load.grpc_sender import SERVICE, open_channel

    metadata = (("authorization", f"Bearer {target.token}"),) if target.token else ()
    async with open_channel(target) as channel:

        async def call(method: str, request: Any, read: Callable[[bytes], Any]) -> Any:
            invoke: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/{SERVICE}/{method}")
            try:
                return read(await invoke(request.SerializeToString(), metadata=metadata))
            except grpc.aio.AioRpcError as error:
                raise TargetError(f"{target.url}: {error.code().name}: {error.details()}") from None

        yield call


def _served(
    model: str, inputs: list[tuple[str, str, list[int]]], max_batch: int | None
) -> RemoteModel:
    """Describe a model. If `max_batch` is None, the model batches if all first axes are free."""
    for _, kind, _ in inputs:
        if kind not in BY_NAME:
            raise TargetError(f"model {model!r}: unknown datatype {kind!r} in its metadata")
    specs = tuple(TensorSpec(name, BY_NAME[kind], tuple(shape)) for name, kind, shape in inputs)
    free = bool(specs) and all(spec.shape[:1] == (-1,) for spec in specs)
    return RemoteModel(model, specs, free if max_batch is None else max_batch > 0)


async def _get(target: Target, path: str, subject: str) -> Any:
    status, body = await fetch(target, path)
    if status == 200:
        return _json(body, subject)
    raise TargetError(f"{target.url}: {subject}: {status} {error_text(body, 200)}")


def _json(body: bytes, subject: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise TargetError(f"{subject}: the answer is not JSON") from None

"""Everything that is done before the first request leaves: discover, draw, encode."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.load.discover import discover
from slacktide.load.encode import (
    GrpcRequest,
    HttpRequest,
    grpc_tensors,
    http_json,
    http_raw,
    http_tensors,
)
from slacktide.load.errors import LoadSpecError
from slacktide.load.schedule import Purpose, Schedule, generator, make_schedule
from slacktide.load.spec import (
    FilePayload,
    LoadSpec,
    RandomPayload,
    RawPayload,
    Stream,
    Transport,
)
from slacktide.load.tensors import ServedModel, Tensors, file_tensors, random_tensors

Request = HttpRequest | GrpcRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to start."""

    spec: LoadSpec
    schedule: Schedule
    requests: tuple[Request, ...]
    """Every payload of every stream, in the order the schedule numbers them; all of one kind."""


async def prepare(spec: LoadSpec) -> Prepared:
    """Ask the server for its models, draw and encode every payload, draw the schedule.

    Raises LoadError.
    """
    served: dict[tuple[str, str | None], ServedModel] = {}
    requests: list[Request] = []
    counts = []
    for number, stream in enumerate(spec.streams):
        if isinstance(stream.payload, RawPayload):
            made: list[Request] = [
                http_raw(spec.target, stream.payload, body) for body in stream.payload.bodies
            ]
        else:
            key = (stream.model, stream.version)
            if key not in served:
                served[key] = await discover(spec.target, *key)
            made = _encode(spec, stream, number, served[key])
        requests += made
        counts.append(len(made))
    schedule = make_schedule(spec, counts)
    return Prepared(spec, schedule, tuple(requests))


def _encode(spec: LoadSpec, stream: Stream, number: int, model: ServedModel) -> list[Request]:
    http = spec.target.transport is Transport.HTTP

    def encode(tensors: Tensors) -> Request:
        return http_tensors(spec.target, stream, tensors) if http else grpc_tensors(stream, tensors)

    payload = stream.payload
    if isinstance(payload, RandomPayload):
        rng = generator(spec.seed, Purpose.CONTENTS, number)
        return [encode(tensors) for tensors in random_tensors(stream, model, payload, rng)]
    made: list[Request] = []
    for path in payload.paths if isinstance(payload, FilePayload) else ():
        if path.suffix != ".json":
            made.append(encode(file_tensors(path, model)))
        elif http:
            made.append(http_json(spec.target, stream, path, batches=model.batches))
        else:
            raise LoadSpecError("payload", f"{path.name}: a .json body needs an http:// target")
    return made

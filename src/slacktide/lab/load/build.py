"""Makes a `LoadSpec` from the texts of a command line. Does no I/O except reading named files.

Every error is a LoadSpecError whose `flag` names the flag at fault.

In a run with several streams, each has a `--stream`: words of the form KEY=VALUE, split as a shell
would (`--stream 'model=mlp arrivals=poisson:100 deadline=50ms'`). The keys are the flags of a
single stream; an omitted key takes the value of its flag.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from slacktide.domain import OptionError, Registry, did_you_mean, read_options
from slacktide.lab.load.flags import LoadFlags
from slacktide.lab.load.spec import (
    FilePayload,
    LoadSpec,
    LoadSpecError,
    Payload,
    RandomPayload,
    Shape,
    Stream,
    Target,
    Transport,
)
from slacktide.lab.load.traces import read_bandwidths, read_trace
from slacktide.lab.workloads import (
    Arrivals,
    ConstantLink,
    TraceLink,
    WorkloadError,
    parse_arrivals,
    parse_deadlines,
    parse_link,
    parse_number,
)
from slacktide.wire.calls import Parameter

_SCHEMES: Mapping[str, tuple[Transport, bool, int]] = {
    "http": (Transport.HTTP, False, 8000),
    "https": (Transport.HTTP, True, 8000),
    "grpc": (Transport.GRPC, False, 8001),
    "grpcs": (Transport.GRPC, True, 8001),
}
_STREAM_KEYS = (
    "model", "version", "application", "arrivals", "deadline", "priority", "rows", "shape",
    "payload", "parameter", "name",
)  # fmt: skip
_REPEATED = ("shape", "parameter")
NO_MODEL = "expected the name of a model"
MOST_LENGTHS = 16
"""Maximum number of lengths that a range such as 8..200 expands to."""


_AS_GIVEN = {field.name for field in fields(LoadSpec)} - {"target", "streams", "link"}
"""Fields of a `LoadSpec` that take the values of their flags unchanged."""


def build_spec(target: str, **flags: Any) -> LoadSpec:
    """Return the run that `flags`, the fields of `LoadFlags`, ask for.

    `rows` is a list (`1,2,4`), a `shape` is INPUT=DIMS[,DIMS…] (`ids=16,64`, `ids=8..24` or
    `image=3x32x32`), a `payload` is `random`, `random:integers=1000`, or files (`a.npz,b.npz`), a
    `parameter` is NAME=VALUE, a `link` is a text for `parse_link`. Raises LoadSpecError naming the
    flag.
    """
    stated = {name: value for name, value in flags.items() if value is not None}
    try:
        options = read_options(LoadFlags, stated)
    except OptionError as error:
        name, message = error.problems[0]
        raise LoadSpecError(f"--{name.replace('_', '-')}", message) from None
    defaults: dict[str, list[str]] = {}
    for key in _STREAM_KEYS:
        value = getattr(options, key, "")  # `name` has no flag
        defaults[key] = list(value) if key in _REPEATED else [str(value)]
    if options.stream:
        streams = []
        for number, text in enumerate(options.stream, start=1):
            with _inside(f"--stream {number}"):
                streams.append(_stream({**defaults, **_words(text)}))
    else:
        with _inside(""):
            streams = [_stream(defaults)]
    with _inside(""):
        return LoadSpec(
            target=parse_target(target, token_file=options.token_file, ca_file=options.ca_file),
            streams=tuple(streams),
            link=_link(options.link, options.rtt),
            **{name: getattr(options, name) for name in _AS_GIVEN},
        )


def parse_target(
    text: str, *, token_file: Path | None = None, ca_file: Path | None = None
) -> Target:
    """Parse `[http|https|grpc|grpcs://]HOST[:PORT][/PREFIX]`; by default http, and port 8000 (gRPC:
    8001). Raises LoadSpecError naming TARGET or --token-file."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in _SCHEMES:
        raise LoadSpecError("TARGET", f"expected http(s):// or grpc(s)://, got {text!r}")
    transport, tls, port = _SCHEMES[parts.scheme]
    prefix = parts.path.rstrip("/")
    if not parts.hostname or parts.query or parts.fragment or parts.username:
        raise LoadSpecError("TARGET", f"expected HOST[:PORT][/PREFIX], got {text!r}")
    if prefix and transport is Transport.GRPC:
        raise LoadSpecError("TARGET", f"expected no path prefix with gRPC, got {text!r}")
    if not (parts.hostname + prefix).isascii() or not (parts.hostname + prefix).isprintable():
        raise LoadSpecError("TARGET", f"expected printable ASCII, got {text!r}")
    return Target(
        transport=transport,
        host=parts.hostname,
        port=_port(parts, text) or port,
        tls=tls,
        base_path=prefix,
        token=None if token_file is None else _token(token_file),
        ca_file=ca_file,
    )


def _port(parts: SplitResult, text: str) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise LoadSpecError("TARGET", f"expected a port from 1 to 65535, got {text!r}") from None


def _link(text: str, rtt: float) -> ConstantLink | TraceLink | None:
    if not text:
        if rtt:
            raise LoadSpecError("rtt", "needs --link")
        return None
    with _renamed("link"):
        return parse_link(text, rtt=rtt, read_bandwidths=read_bandwidths)


def _stream(values: Mapping[str, list[str]]) -> Stream:
    only = {key: texts[-1] for key, texts in values.items() if key not in _REPEATED}
    if not only["model"]:
        raise LoadSpecError("model", NO_MODEL)
    with _renamed("arrivals"):
        arrivals = parse_arrivals(only["arrivals"], read_trace, _admit)
    with _renamed("deadline"):
        deadlines = parse_deadlines(only["deadline"])
    return Stream(
        model=only["model"],
        arrivals=arrivals,
        deadlines=deadlines,
        version=only["version"] or None,
        application=only["application"],
        priority=_integer("priority", only["priority"]),
        rows=tuple(_integer("rows", text) for text in only["rows"].split(",")),
        shapes=dict(_shapes(text) for text in values["shape"]),
        payload=_payload(only["payload"]),
        parameters=dict(_parameter(text) for text in values["parameter"]),
        name=only["name"],
    )


def _admit(registry: Registry[Arrivals], name: str) -> None:
    from slacktide.models import admit_name  # needed only for processes that are not built in

    admit_name(registry, name, imports=True)


def _words(text: str) -> dict[str, list[str]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise LoadSpecError("stream", f"{error} in {text!r}") from None
    values: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _STREAM_KEYS:
            expected = f"expected KEY=VALUE, got {word!r}{did_you_mean(key, _STREAM_KEYS)}"
            raise LoadSpecError("stream", f"{expected} (keys: {', '.join(_STREAM_KEYS)})")
        if key in values and key not in _REPEATED:
            raise LoadSpecError(key, "given twice")
        values.setdefault(key, []).append(value)
    return values


def _shapes(text: str) -> tuple[str, tuple[Shape, ...]]:
    name, equals, choices = text.rpartition("=")
    if not equals or not name:
        raise LoadSpecError("shape", f"expected INPUT=DIMS, such as ids=16,64, got {text!r}")
    shapes: list[Shape] = []
    for choice in choices.split(","):
        low, dots, high = choice.partition("..")
        shapes += _range(low, high, text) if dots else [_shape(choice, text)]
    return name, tuple(shapes)


def _range(low: str, high: str, text: str) -> list[Shape]:
    """Return the lengths from `low` to `high`: all, or `MOST_LENGTHS` evenly spaced ones."""
    first, last = _shape(low, text), _shape(high, text)
    if len(first) != 1 or len(last) != 1 or first > last:
        raise LoadSpecError("shape", f"expected lengths such as 8..24, got {text!r}")
    count = min(last[0] - first[0] + 1, MOST_LENGTHS)
    step = (last[0] - first[0]) / max(1, count - 1)
    return [(first[0] + round(number * step),) for number in range(count)]


def _shape(choice: str, text: str) -> Shape:
    axes = choice.split("x") if choice else []
    if not all(axis.isdecimal() and axis.isascii() for axis in axes):
        raise LoadSpecError("shape", f"expected dimensions such as 16 or 3x32x32, got {text!r}")
    return tuple(map(int, axes))


def _payload(text: str) -> Payload:
    kind, _, options = text.partition(":")
    if kind != "random":
        paths = tuple(Path(part) for part in text.split(",") if part)
        for path in paths:
            if path.suffix not in (".npy", ".npz", ".json"):
                expected = "random, random:integers=N, or files that end in .npy, .npz or .json"
                raise LoadSpecError("payload", f"expected {expected}, got {str(path)!r}")
        return FilePayload(paths)
    values = {"integers": RandomPayload().integers, "variety": RandomPayload().variety}
    for item in options.split(":") if options else []:
        key, equals, value = item.partition("=")
        if not equals or key not in values:
            raise LoadSpecError("payload", f"expected random:integers=N:variety=N, got {text!r}")
        values[key] = _integer("payload", value)
    return RandomPayload(**values)


def _parameter(text: str) -> tuple[str, Parameter]:
    """Parse NAME=VALUE. The values true, false and numbers get the corresponding type."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise LoadSpecError("parameter", f"expected NAME=VALUE, got {text!r}")
    if value in ("true", "false"):
        return name, value == "true"
    try:
        return name, int(value)
    except ValueError:
        pass
    try:
        return name, parse_number(value, "parameter")
    except WorkloadError:
        return name, value


def _integer(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LoadSpecError(flag, f"expected a whole number, got {text!r}") from None


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise LoadSpecError("--token-file", f"cannot read {path}: {reason}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise LoadSpecError("--token-file", f"expected a token of printable ASCII in {path}")
    return token


@contextmanager
def _renamed(flag: str) -> Iterator[None]:
    """Turn a WorkloadError in the block into a LoadSpecError that names `flag`."""
    try:
        yield
    except WorkloadError as error:
        message = str(error).removeprefix(f"{flag}: ").removeprefix(f"{flag}s: ")
        raise LoadSpecError(flag, message) from None


@contextmanager
def _inside(stream: str) -> Iterator[None]:
    """Make errors in the block name the flag as the user typed it: `--rows`, `--stream 2, rows`."""
    try:
        yield
    except LoadSpecError as error:
        flag = error.flag
        if not flag.startswith("-") and flag != "TARGET":
            flag = f"{stream}, {flag}" if stream else f"--{flag}"
        raise LoadSpecError(flag, str(error).partition(": ")[2]) from None
    except WorkloadError as error:
        raise LoadSpecError(f"--{error.field}", str(error).partition(": ")[2]) from None

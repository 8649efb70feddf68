"""Log lines: two formats, one line each, whatever clients write; and the access log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Outcome, Reason
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http import HttpRoute, HttpServer
from slacktide.frontends.http.messages import HttpResponse
from slacktide.frontends.ports import AccessRecord, EndpointGroup
from slacktide.observability.logs import (
    AccessLogger,
    JsonFormatter,
    TextFormatter,
    configure,
    printable,
)

MANUAL = Path(__file__).parents[2] / "docs" / "logs.md"
HOSTILE = "r\n12:00:00.000 info    server: forged\r\x1b[31m\x9b\u2028\u202e\x00\x7f"
SERVED = Outcome(Reason.ON_TIME, 1.0, 0.00025149, 0.00079, 8, 0.01)
HTTP = AccessRecord(
    "http",
    "127.0.0.1",
    "POST",
    "/v2/models/mlp/infer",
    200,
    0.0012041,
    "r-17",
    312,
    "mlp",
    SERVED,
)
METHOD = "/inference.GRPCInferenceService/ModelInfer"
REFUSED = Outcome(Reason.BEHIND_WORK, 1.0, budget_s=0.01)
GRPC = AccessRecord(
    "grpc",
    "127.0.0.1",
    METHOD,
    "mlp",
    "RESOURCE_EXHAUSTED",
    0.002,
    "r-18",
    outcome=REFUSED,
)


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    root, names = logging.getLogger(), ("slacktide", "slacktide.access")
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def configured(level: str = "info", format: str = "json") -> io.StringIO:
    stream = io.StringIO()
    configure(level, format, stream=stream)
    return stream


def entries(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_time_level_logger_message_and_extras() -> None:
    stream = configured()
    extra = {"request_id": "r-1", "rows": 3, "share": float("nan"), "where": Path("x")}
    logging.getLogger("slacktide.models").warning("%s is slow", "mlp", extra=extra)
    (entry,) = entries(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(entry.pop("ts")))
    assert entry == {
        "level": "warning",
        "logger": "slacktide.models",
        "message": "mlp is slow",
        "request_id": "r-1",
        "rows": 3,
        "share": "nan",
        "where": "x",
    }


def test_an_extra_cannot_replace_what_a_line_always_has() -> None:
    stream = configured()
    logging.getLogger("slacktide.x").info("true", extra={"level": "forged", "ts": "never"})
    (entry,) = entries(stream)
    assert entry["level"] == "info"
    assert entry["ts"] != "never"


def test_an_exception_is_folded_into_its_json_line() -> None:
    stream = configured()
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("slacktide.x").exception("it failed")
    (entry,) = entries(stream)
    assert (entry["error"], entry["error_message"]) == ("ValueError", "first\nsecond")
    assert "Traceback" in str(entry["traceback"])


@given(st.text())
def test_a_json_record_is_one_ascii_line_for_any_text(text: str) -> None:
    record = logging.makeLogRecord({"msg": text, "request_id": text, "name": "slacktide.x"})
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == json.loads(line)["request_id"] == text


@given(st.text())
def test_a_text_record_is_one_printable_line_for_any_text(text: str) -> None:
    standard = {"name": "slacktide.x", "levelname": "INFO", "levelno": logging.INFO}
    record = logging.makeLogRecord({**standard, "msg": text, "request_id": text})
    assert TextFormatter().format(record).isprintable()


def test_a_text_line_is_short() -> None:
    stream = configured("debug", "text")
    logging.getLogger("slacktide.models").warning("drifts", extra={"request_id": "r-1"})
    line = stream.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} warning models: drifts \[r-1\]\n", line)


def test_no_line_of_a_text_traceback_passes_for_a_line_of_ours() -> None:
    stream = configured("info", "text")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("slacktide.x").exception("it failed")
    first, *below = stream.getvalue().removesuffix("\n").split("\n")
    assert first.endswith("error   x: it failed")
    assert len(below) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in below)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        configure("info", "text", stream=stream)
        logging.getLogger("slacktide.x").error("no")
    assert "\x1b[31merror  \x1b[0m" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    configure("info", "text", stream=terminal)
    before = len(terminal.getvalue())
    logging.getLogger("slacktide.x").error("no")
    assert "\x1b" not in terminal.getvalue()[before:]


def test_the_level_is_ours_and_the_access_log_has_its_own_switch() -> None:
    stream = configured("error")
    logging.getLogger("slacktide.models").warning("unheard")
    logging.getLogger("elsewhere").info("unheard")
    logging.getLogger("elsewhere").warning("heard")
    AccessLogger()(HTTP)
    assert [entry["logger"] for entry in entries(stream)] == ["elsewhere", "slacktide.access"]


def test_configuring_again_replaces_ours_and_leaves_others() -> None:
    other = logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(other)
    before = configured("info", "text")
    after = configured("debug", "json")
    again = configured("debug", "json")
    logging.getLogger("slacktide.x").debug("once")
    assert before.getvalue() == after.getvalue() == ""
    assert len(entries(again)) == 1
    assert other in root.handlers


@pytest.mark.parametrize(("level", "format"), [("loud", "text"), ("info", "xml")])
def test_unknown_levels_and_formats_are_refused_with_the_choices(level: str, format: str) -> None:
    with pytest.raises(ValueError, match=r"expected one of .*(debug|text).*, got"):
        configure(level, format)


@pytest.mark.parametrize("text", ["models/mlp", "Übergröße 模型 ☂", ""])
def test_printable_text_stays(text: str) -> None:
    assert printable(text) == text


def test_unprintable_characters_are_escaped_and_long_texts_cut() -> None:
    assert printable("a\nb\x1b[0m\u202e") == r"a\nb\x1b[0m\u202e"
    assert printable("x" * 300) == "x" * 255 + "…"


def test_an_access_line_over_http() -> None:
    stream = configured()
    AccessLogger()(HTTP)
    (entry,) = entries(stream)
    assert entry.pop("ts")
    assert entry == {
        "level": "info",
        "logger": "slacktide.access",
        "message": '127.0.0.1 "POST /v2/models/mlp/infer" 200 312 B 1.204 ms, on_time, 8 rows, '
        "queue 0.251 ms, compute 0.790 ms",
        "transport": "http",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v2/models/mlp/infer",
        "model": "mlp",
        "outcome": "served",
        "reason": "on_time",
        "batch_rows": 8,
        "queue_seconds": 0.000251,
        "compute_seconds": 0.00079,
        "status": 200,
        "bytes_sent": 312,
        "seconds": 0.001204,
        "request_id": "r-17",
    }


def test_an_access_line_over_grpc() -> None:
    stream = configured()
    AccessLogger()(GRPC)
    (entry,) = entries(stream)
    assert entry.pop("ts")
    assert entry == {
        "level": "info",
        "logger": "slacktide.access",
        "message": f'127.0.0.1 "{METHOD}" mlp RESOURCE_EXHAUSTED 2.000 ms, behind_work',
        "transport": "grpc",
        "client": "127.0.0.1",
        "method": "/inference.GRPCInferenceService/ModelInfer",
        "model": "mlp",
        "status": "RESOURCE_EXHAUSTED",
        "outcome": "rejected",
        "reason": "behind_work",
        "seconds": 0.002,
        "request_id": "r-18",
    }


def test_every_field_is_in_the_manual() -> None:
    stream = configured()
    AccessLogger()(HTTP)
    AccessLogger()(GRPC)
    try:
        raise ValueError
    except ValueError:
        logging.getLogger("slacktide.x").exception("it failed")
    fields = {field for entry in entries(stream) for field in entry}
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*)", _manual(), re.M))))
    assert fields == documented


def _manual() -> str:
    """From the JSON format on; the settings before it are no fields."""
    return MANUAL.read_text().partition("## JSON")[2]


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_path_that_is_not_utf_8_is_escaped(format: str) -> None:
    stream = configured("info", format)
    logging.getLogger("slacktide.server").info("%s is served", os.fsdecode(b"/m\xff.onnx"))
    (line,) = stream.getvalue().splitlines()
    message = json.loads(line)["message"] if format == "json" else line
    assert "/m\\xff.onnx is served" in message
    assert "udcff" not in line


@pytest.mark.parametrize("format", ["text", "json"])
def test_clients_cannot_forge_access_lines(format: str) -> None:
    stream = configured("info", format)
    access = AccessLogger()
    access(AccessRecord("http", "127.0.0.1", "POST", HOSTILE, 200, 0.1, HOSTILE, 0))
    access(AccessRecord("grpc", "127.0.0.1", "/s/m", HOSTILE, "OK", 0.1, HOSTILE))
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_a_handler_of_others_gets_printable_text_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("slacktide.access")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        AccessLogger()(AccessRecord("http", "127.0.0.1", "GET", HOSTILE, 200, 0.1, HOSTILE, 0))
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue().removesuffix("\n").isprintable()


@pytest.mark.parametrize("health", [True, False])
async def test_both_front_ends_write_their_lines_of_health_only_if_asked(health: bool) -> None:
    stream = configured()
    access = AccessLogger(health=health)

    http = HttpServer(
        (HttpRoute("GET", "/ok", lambda request: HttpResponse(), EndpointGroup.HEALTH),),
        access_log=access,
    )
    await http.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(b"GET /ok?secret=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await reader.read()
    writer.close()
    await http.close()

    server = GrpcServer(Plane(), Plane(), access_log=access)  # type: ignore[arg-type]  # no call is made of them
    await server.start("127.0.0.1", 0)
    method = "/inference.GRPCInferenceService/ServerLive"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        await channel.unary_unary(method)(b"")
    await server.close()
    if not health:
        assert entries(stream) == []
        return
    http, rpc = entries(stream)
    assert (http["method"], http["path"], http["status"]) == ("GET", "/ok", 200)
    assert (rpc["method"], rpc["status"]) == ("/inference.GRPCInferenceService/ServerLive", "OK")


class Plane:
    """All that these calls need of the server."""

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return True

"""Every route: what it answers, what guards it, what it refuses."""

from __future__ import annotations

import asyncio
import logging

import pytest
import tritonclient.http as triton
from tests.frontends.http.http_client import binary, post, serve

from slacktide.frontends.common.security import Gate, PortRules, Verdict
from slacktide.frontends.http import HttpRoute, HttpServer, inference_routes, metrics_routes
from slacktide.frontends.http.messages import HttpResponse
from slacktide.frontends.http.router import Router
from slacktide.frontends.ports import EndpointGroup
from slacktide.frontends.settings import HttpSettings
from slacktide.wire.errors import BadField, ControlError

ROUTES = inference_routes(None, None, HttpSettings())  # only looked at, never called


def request(method: str, path: str, content: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: t", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def filled(pattern: str) -> str:
    for name in ("{model}", "{version}", "{region}", "{repository}"):
        pattern = pattern.replace(name, {"{model}": "m", "{version}": "1"}.get(name, "r"))
    return pattern


ANSWERS = [
    ("GET", "/v2/health/live", 200, "live"),
    ("GET", "/v2/health/ready", 200, "ready"),
    ("GET", "/v2/models/m/ready", 200, "ready"),
    ("GET", "/v2/models/m/versions/1/ready", 200, "ready"),
    ("GET", "/v2/models/m/versions/2/ready", 400, "ready"),
    ("GET", "/v2/models/x/ready", 400, "ready"),
    ("GET", "/v2?a=/b", 200, "extensions"),
    ("GET", "http://host/v2", 200, "extensions"),
    ("GET", "/v2/models/stats", 200, "model_stats"),
    ("GET", "/v2/models/m/stats", 200, "model_stats"),
    ("GET", "/v2/models/m/versions/1/stats", 200, "model_stats"),
    ("GET", "/v2/models/m/config", 200, "max_batch_size"),
    ("GET", "/v2/models/x/config", 404, "error"),
    ("GET", "/v2/models/x", 404, "error"),
    ("POST", "/v2/models/m/generate", 501, "error"),
    ("POST", "/v2/models/m/versions/1/generate_stream", 501, "error"),
    ("POST", "/v2/repository/elsewhere/index", 501, "error"),
    ("POST", "/v2/repository/elsewhere/models/m/load", 501, "error"),
    ("POST", "/v2/repository/models/m/load", 200, None),
    ("POST", "/v2/repository/models/m/unload", 200, None),
    ("POST", "/v2/repository/models/x/unload", 404, "error"),
    ("GET", "/v2/trace/setting", 200, "trace_level"),
    ("GET", "/v2/models/m/trace/setting", 200, "trace_level"),
    ("POST", "/v2/trace/setting", 501, "error"),
    ("GET", "/v2/logging", 200, "log_info"),
    ("POST", "/v2/logging", 501, "error"),
    ("POST", "/v2/systemsharedmemory/region/r/register", 501, "error"),
    ("POST", "/v2/cudasharedmemory/region/r/register", 501, "error"),
    ("POST", "/v2/systemsharedmemory/unregister", 200, None),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", 200, None),
    ("GET", "/v2/cudasharedmemory/region/r/status", 404, "error"),
    ("GET", "/", 404, "error"),
    ("GET", "/v2/", 404, "error"),
    ("GET", "/v2/models//ready", 404, "error"),
    ("GET", "/v2/models/m/ready/", 404, "error"),
    ("GET", "/v2" + "/a" * 50, 404, "error"),
    ("GET", "/v2/models/a%2Fb/ready", 400, "error"),
    ("GET", "/v2/models/a%zz/ready", 400, "error"),
    ("GET", "/v2/models/%ff/ready", 400, "error"),
    ("GET", "/v2/models/%00/ready", 400, "error"),
    ("OPTIONS", "/v2", 405, "error"),
    ("DELETE", "/v2/models/m/infer", 405, "error"),
]


@pytest.mark.parametrize(("method", "path", "status", "key"), ANSWERS)
async def test_each_route_answers(method, path, status, key):
    async with serve() as front_end:
        answer = await front_end.ask(request(method, path))
        assert answer.status == status
        if key is None:
            assert answer.body == b""
        else:
            assert key in answer.json
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/", "inference is POST /v2/models/NAME/infer"),
        ("GET", "/metrics", "--metrics-port"),
        ("POST", "/v1/models/m:predict", "version 2 of the protocol"),
        ("GET", "/v2/models/m/infer", "use POST here, with the inputs in the body"),
        ("POST", "/v2/models/m", "use GET here"),
    ],
)
async def test_a_path_that_is_not_there_says_where_things_are(method, path, words):
    async with serve() as front_end:
        assert words in (await front_end.ask(request(method, path))).json["error"]


def test_ports_of_one_purpose_say_what_they_are_for():
    metrics = Router(metrics_routes(lambda: (200, "text/plain", ())))
    assert metrics.hint(b"/") == "not found; this port serves only GET /metrics"
    control = Router([route for route in ROUTES if route.group is not EndpointGroup.INFERENCE])
    assert "inference is on the HTTP port" in control.hint(b"/v2/models/m/infer")


async def test_shapes_of_the_longer_answers():
    async with serve() as front_end:
        for content, rows in ((b"", 2), (b'{"ready":true}', 1)):
            index = await front_end.ask(request("POST", "/v2/repository/index", content))
            assert len(index.json) == rows
        regions = await front_end.ask(request("GET", "/v2/systemsharedmemory/status"))
        assert regions.json == []
        wrong = await front_end.ask(request("PUT", "/v2/models/m"))
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_readiness_fails_when_the_server_says_so():
    async with serve() as front_end:
        front_end.control.is_ready = False
        answer = await front_end.ask(request("GET", "/v2/health/ready"))
        assert (answer.status, answer.json) == (503, {"ready": False})
        assert (await front_end.ask(request("GET", "/v2/health/live"))).status == 200


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/m/versions/2/ready", {"name": "m", "ready": False}),
    ],
)
async def test_health_has_the_bodies_of_the_protocol(path, document):
    """KServe's own client reads them; Triton's reads the status alone."""

    async with serve() as front_end:
        assert (await front_end.ask(request("GET", path))).json == document


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{",
        b'{"parameters":[]}',
        b'{"parameters":{"config":{}}}',
        b'{"parameters":{"file:1/model.onnx":"%%"}}',
        b'{"parameters":{"file:1/model.onnx":7}}',
    ],
)
async def test_bad_load_bodies_are_400(content):
    async with serve() as front_end:
        answer = await front_end.ask(request("POST", "/v2/repository/models/m/load", content))
        assert answer.status == 400
        assert front_end.control.loads == []


async def test_control_that_is_off_is_403_and_large_bodies_are_413():
    async with serve(HttpSettings(max_control_bytes=100)) as front_end:
        front_end.control.error = ControlError("forbidden", "repository control is off")
        path = "/v2/repository/models/m/load"
        assert (await front_end.ask(request("POST", path))).status == 403
        assert (await front_end.ask(request("POST", path, b" " * 101))).status == 413
        client = await front_end.connect()
        client.send(b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\n\r\n" % path.encode())
        assert (await client.answer()).status == 413


async def test_json_of_a_control_call_is_no_longer_than_a_turn_of_the_loop_bears():
    async with serve() as front_end:
        text = b'{"ready":%b1%b}' % (b"[" * 40_000, b"]" * 40_000)
        answer = await front_end.ask(request("POST", "/v2/repository/index", text))
        assert answer.status == 413
        assert answer.json["error"] == "body: expected at most 65536 bytes, got 80011"


async def test_control_bodies_may_come_in_pieces():
    async with serve() as front_end:
        raw = request("POST", "/v2/repository/index", b'{"ready":true}')
        client = await front_end.connect()
        client.send(raw[:-5])
        await front_end.until(lambda: front_end.context.buffers.bytes_in_use)
        client.send(raw[-5:])
        assert len((await client.answer()).json) == 1
        client.close()
        assert front_end.context.buffers.bytes_in_use == 0


async def test_the_stock_client_reads_settings():
    def ask(port: int) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.get_trace_settings()["trace_level"] == ["OFF"]
            assert client.get_log_settings()["log_verbose_level"] == 0

    async with serve() as front_end:
        await asyncio.to_thread(ask, front_end.server.port)


# ------------------------------------------------------------------------------- the gate


def gate(group, headers):
    if headers.get(b"authorization") == b"Bearer right":
        return Verdict.PASS
    return Verdict.CONTROL_OFF if group is EndpointGroup.CONTROL else Verdict.NO_TOKEN


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.pattern}")
async def test_the_gate_stands_before_every_route(route):
    status = 403 if route.group is EndpointGroup.CONTROL else 401
    message = gate(route.group, {}).value

    async with serve(authorize=gate) as front_end:
        path = filled(route.pattern)
        denied = await front_end.ask(request(route.method, path, b"{}"))
        assert (denied.status, denied.json) == (status, {"error": message})
        assert front_end.data.calls == front_end.data.refused == front_end.control.loads == []
        token = "Authorization: Bearer right"
        assert (await front_end.ask(request(route.method, path, b"{}", token))).status != status


async def test_the_gate_judges_each_request_of_a_head_that_is_known():
    data, line = binary(b"hello")
    raw, verdict = post(data, line), Verdict.PASS

    async with serve(authorize=lambda group, headers: verdict) as front_end:
        client = await front_end.connect()
        for verdict in (Verdict.PASS, Verdict.WRONG_TOKEN, Verdict.PASS, Verdict.FOREIGN_PAGE):
            client.send(raw)
            answer = await client.answer()
            assert answer.status == {Verdict.PASS: 200}.get(verdict, verdict.status)
        client.close()
        assert len(front_end.data.calls) == 2


LOCAL = Gate(None).on(PortRules(hosts=frozenset({"models.example"}), control=True))


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost{}", "localhost", 200),
        ("http://LOCALHOST:8003{}", "localhost:1", 200),
        ("http://models.example.:80{}", "localhost", 200),
        ("http://[::1]:8003{}", "127.0.0.1", 200),
        ("http://evil.example{}", "localhost", 403),
        ("https://evil.example:443{}", "localhost", 403),
        ("HTTP://evil.example{}", "localhost", 403),
        ("http://localhost{}", "evil.example", 403),
        ("http://localhost.evil.example{}", "localhost", 403),
        ("http://0.0.0.0{}", "localhost", 403),
        ("http://[::2]{}", "localhost", 403),
        ("http://localhost@evil.example{}", "localhost", 400),
        ("http://evil.example@localhost{}", "localhost", 400),
        ("http://evil.example\\@localhost{}", "localhost", 400),
        ("http://localhost:80:80{}", "localhost", 404),
        ("http://localhost:123456{}", "localhost", 404),
        ("{}", "localhost:" + "0" * 300 + "@evil.example", 403),
        ("{}", "localhost:123456", 403),
        ("{}", "evil.example", 403),
    ],
)
async def test_every_host_that_a_request_names_is_judged(target, host, status):
    """A page whose name leads to this machine is kept out, wherever the name stands."""

    async with serve(authorize=LOCAL) as front_end:
        for path in ("/v2/repository/models/m/load", "/v2/models/m/config"):
            method = "GET" if "config" in path else "POST"
            line = f"{method} {target.format(path)} HTTP/1.1\r\nHost: {host}\r\n"
            for _ in range(2):  # the second head is remembered
                answer = await front_end.ask(f"{line}Content-Length: 0\r\n\r\n".encode())
                assert answer.status == status, answer.body
        assert bool(front_end.control.loads) is (status == 200)


async def test_a_request_without_a_host_header_is_judged_by_its_target():
    async with serve(authorize=LOCAL) as front_end:
        for host, status in (("localhost", 200), ("evil.example", 403)):
            line = f"GET http://{host}/v2/models/m/config HTTP/1.0\r\n\r\n"
            assert (await front_end.ask(line.encode())).status == status


# ------------------------------------------------------------------------------- other tables


@pytest.mark.usefixtures("run")
async def test_metrics_on_the_same_server():
    routes = metrics_routes(lambda: (200, "text/plain; version=0.0.4", [b"up", b" 1\n"]))

    server = HttpServer(routes)
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics?x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await server.close()
    assert b"text/plain; version=0.0.4\r\n" in head
    assert content == b"up 1\n"


@pytest.mark.usefixtures("run")
async def test_a_handler_that_raises_is_500_and_logged(caplog):
    async def slow(request):
        raise RuntimeError("/secret/path")

    def fast(request):
        raise RuntimeError("/secret/path")

    routes = [
        HttpRoute("GET", "/a", slow, EndpointGroup.HEALTH),
        HttpRoute("GET", "/b", fast, EndpointGroup.HEALTH),
    ]

    with caplog.at_level(logging.ERROR):
        server = HttpServer(routes, access_log=lambda access: 1 / 0)
        await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n"
            b"GET /b HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
        )
        raw = await reader.read()
        writer.close()
        await server.close()
        assert raw.count(b"HTTP/1.1 500 ") == 2
        assert b"secret" not in raw
    assert "secret" in caplog.text
    assert "the access log failed" in caplog.text


def test_tables_that_contradict_themselves_are_refused():
    def handler(request):
        return HttpResponse()

    route = HttpRoute("GET", "/a/{x}", handler, EndpointGroup.HEALTH)
    with pytest.raises(ValueError, match="two routes"):
        Router([route, route])
    with pytest.raises(ValueError, match="elsewhere"):
        Router([route, HttpRoute("GET", "/a/{y}/b", handler, EndpointGroup.HEALTH)])


def test_the_router_caches_within_bounds():
    router = Router(ROUTES)
    for number in range(5000):
        match = router.match(b"/v2/models/%d/ready?%d" % (number, number))
        assert match is not None
        assert match.params == {"model": str(number)}
    assert len(router._cache) <= 1024
    assert router.match(b"*") is None
    assert router.match(b"host:80") is None
    with pytest.raises(BadField):
        router.match(b"/v2/models/%/ready")

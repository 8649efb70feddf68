"""The server as those who run it meet it: a program, signals, ports, certificates, tokens."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

import slacktide
from slacktide.cli.main import app as command_line
from slacktide.domain import PoolId
from slacktide.frontends.common import security
from slacktide.frontends.common.security import OPEN_GROUPS, SecurityError, TlsFiles
from slacktide.frontends.ports import EndpointGroup
from slacktide.models.replica_launcher import ModelPoolFactory
from slacktide.server.front_ends import bind_error
from slacktide.wire.errors import ControlError
from slacktide.wire.proto import messages

TOKEN = "correct-horse-battery-staple"


# ── the program ──────────────────────────────────────────────────────────────────────────────────


FREE = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--profile-budget", "200ms")


def status(house: Any, port: int, path: str) -> int | None:
    """Status of a GET on a new connection; None if nobody listens."""
    try:
        return int(house.ask(port, "GET", path).status)
    except ConnectionError:
        return None


@pytest.mark.slow
def test_a_signal_drains_and_a_clean_end_exits_0(program: Any, zoo: Any, common: Any) -> None:
    """Readiness fails first; what is in flight is answered; then it ends."""
    zoo.slow(turns=40_000)
    served = program(zoo.root, *FREE, "--drain-delay", "1s", "--access-log")
    port = served.port("http")
    assert status(common, port, "/v2/health/ready") == 200
    answer = common.spawn(
        common.ask, port, "POST", "/v2/models/slow/infer", json.dumps(common.slow_call())
    )
    served.process.send_signal(signal.SIGTERM)
    statuses = [status(common, port, "/v2/health/ready")]
    while statuses[-1] not in (503, None):
        statuses.append(status(common, port, "/v2/health/ready"))
    assert statuses[-1] == 503, "the port closed before readiness had failed"
    assert status(common, port, "/v2/health/live") == 200
    assert answer.result().status == 200
    family = served.family() if served.process.poll() is None else []
    assert served.end() == 0
    assert status(common, port, "/v2/health/live") is None
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in family)
    assert "Traceback" not in "".join(served.said)


def test_a_second_signal_ends_it_at_once(program: Any, zoo: Any, common: Any) -> None:
    zoo.matmul()
    served = program(zoo.root, *FREE, "--drain-delay", "10m")
    port = served.port("http")
    workers = {pid: os.pidfd_open(pid) for pid in served.family()}
    served.process.send_signal(signal.SIGTERM)
    while status(common, port, "/v2/health/ready") != 503:
        pass
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 1
    for pidfd in workers.values():  # they notice by themselves
        poll = select.poll()
        poll.register(pidfd)
        assert poll.poll(20_000)
        os.close(pidfd)


@pytest.mark.slow
def test_a_signal_while_models_load(program: Any, zoo: Any) -> None:
    for i in range(8):
        zoo.matmul(f"model{i}")
    served = program(zoo.root, *FREE, "--profile-budget", "5s")
    while not any("measuring" in line for line in served.said):
        assert served.process.poll() is None, served.said
    served.process.send_signal(signal.SIGINT)
    assert served.end() == 0
    assert "Traceback" not in "".join(served.said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{missing}",), "expected a repository folder"),
        (
            ("{repo}", "--state-dir", "{file}"),
            "--state-dir .*/file: cannot be written",
        ),
        (("{repo}", "--token-file", "{missing}"), "token-file"),
        (("{repo}", "--tls-cert", "{missing}", "--tls-key", "{missing}"), "tls-cert"),
        (("{repo}", "--host", "256.0.0.1"), r"--host 256\.0\.0\.1: "),
    ],
)
def test_a_server_that_cannot_start_says_why_and_exits_2(
    program: Any, zoo: Any, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    zoo.matmul()
    file = tmp_path / "file"
    file.write_text("")
    places = {"repo": zoo.root, "missing": tmp_path / "missing", "file": file}
    refused = program(*(word.format(**places) for word in words), *FREE)
    assert refused.end() == 2
    text = "".join(refused.said)
    assert re.search(message, text), text
    assert "Traceback" not in text
    assert text.count("error: ") == 1
    assert "ready" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--allow-uploads"], "--allow-uploads: needs --control-port"),
        (["--allow-control"], r"--allow-control: needs a token \(.*--control-port"),
        (["--allowed-origins", "app.example"], "--allowed-origins: expected"),
        (["--http-port", "70000"], "--http-port: expected"),
        (["--scheduler", "slak"], "--scheduler: .* did you mean 'slack'"),
        (
            ["--scheduler", "slack", "--scheduler-option", "kapa=1"],
            "--scheduler-option: .* did you mean 'kappa'",
        ),
        (["--header-timeout", "0s"], "--header-timeout: expected more than 0"),
        (["--drain-delay", "soon"], "--drain-delay: expected a duration"),
    ],
)
def test_bad_flags_are_refused_before_anything_starts(
    tmp_path: Path, words: list[str], message: str
) -> None:
    result = CliRunner().invoke(command_line, ["serve", str(tmp_path), *words])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert re.match(f"error: {message}", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (["--scheduler-option", "kappa=1"], {"scheduler_options": {"kappa": 1.0}}, "needs"),
        (
            ["--scaling-policy-option", "cores=1"],
            {"scaling_policy_options": {"cores": 1}},
            "needs scaling_policy",
        ),
        (["--scaling-policy", "statik"], {"scaling_policy": "statik"}, "did you mean 'static'"),
        (["--placement", "octopus"], {"placement": "octopus"}, "expected a placement, got 'octop"),
        (
            ["--placement-option", "max_utilisation=1"],
            {"placement_options": {"max_utilisation": 1}},
            "needs placement",
        ),
        (
            ["--placement", "pipeline", "--placement-option", "max_utilisation=2"],
            {"placement": "pipeline", "placement_options": {"max_utilisation": 2}},
            "max_utilisation: expected more than 0 and at most 1, got 2",
        ),
        (
            ["--scaling-policy", "static", "--scaling-policy-option", "cores=0"],
            {"scaling_policy": "static", "scaling_policy_options": {"cores": 0}},
            "cores: expected at least 1, got 0",
        ),
        (
            ["--scheduler", "slack", "--scheduler-option", "kappa=[1"],
            {"scheduler": "slack", "scheduler_options": {"kappa": "[1"}},
            "kappa.*(number|float)",
        ),
        (
            ["--scheduler", "slack", "--scheduler-option", "kappa=7"],
            {"scheduler": "slack", "scheduler_options": {"kappa": 7.0}},
            "kappa",
        ),
        (["--scheduler", "slak"], {"scheduler": "slak"}, "did you mean 'slack'"),
        (["--client-memory-limit", "0B"], {"client_memory_limit": 0}, "more than 0"),
        (["--idle-timeout", "0s"], {"idle_timeout_s": 0}, "more than 0"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(
    tmp_path: Path, words: list[str], settings: dict[str, Any], message: str
) -> None:
    result = CliRunner().invoke(command_line, ["serve", str(tmp_path), *words])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert result.stderr.startswith(f"error: {words[-2]}: ")
    assert re.search(message, result.stderr)
    with pytest.raises(ValueError, match=message):
        slacktide.Server(tmp_path, **settings).start()


@pytest.mark.parametrize("setting", [{"placement": None}, {"scheduler": 3}])
def test_invalid_names_are_refused_in_python(tmp_path: Path, setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ValueError, match=f"{name}: expected a name, got"):
        slacktide.Server(tmp_path, **setting)


def test_a_model_that_the_engine_cannot_take_fails_and_the_others_serve(
    zoo: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ModelPoolFactory.parts

    def parts(self: ModelPoolFactory, pool: PoolId, max_batch: int, view: Any) -> Any:
        if pool.model == "bad":
            raise ZeroDivisionError("this pool cannot be")
        return make(self, pool, max_batch, view)

    monkeypatch.setattr(ModelPoolFactory, "parts", parts)
    zoo.matmul("bad")
    zoo.matmul()
    with serve(zoo) as house:
        house.good()
        entry = house.index()["bad"]
        assert (entry["state"], "ZeroDivisionError" in entry["reason"]) == ("UNAVAILABLE", True)
        with pytest.raises(ControlError, match="the engine cannot serve it"):
            house.server.load("bad")
        house.good()
        house.look(lambda app: app.driver.broken.set())
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert house.get(path).status == 503, "nobody would start it anew"


@pytest.mark.replaces_parts
def test_a_server_that_can_put_no_plan_in_force_ends(zoo: Any) -> None:
    zoo.matmul()
    text = """
import sys
from pathlib import Path
from slacktide.cli.serve import run
from slacktide.engine.deploying import Deploying
from slacktide.server.settings import ServerSettings
Deploying.plan_changed = lambda self, event: 1 / 0
settings = ServerSettings(http_port=0, grpc_port=None, metrics_port=None, profile_budget_s=0.2)
sys.exit(run(Path(sys.argv[1]), settings))
"""
    ended = subprocess.run(
        [sys.executable, "-c", text, str(zoo.root)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "no plan can be applied" in ended.stderr


def test_with_little_address_space_it_serves_and_says_so(
    program: Any, zoo: Any, common: Any
) -> None:
    zoo.matmul()
    served = program(zoo.root, *FREE)
    limit = 6 << 30
    resource.prlimit(served.process.pid, resource.RLIMIT_AS, (limit, limit))
    port = served.port("http")
    call = json.dumps(common.matmul_call())
    assert common.ask(port, "POST", "/v2/models/matmul/infer", call).status == 200
    assert "the limit on address space (ulimit -v) leaves" in "".join(served.said)


def test_a_port_in_use_is_named(program: Any, zoo: Any) -> None:
    zoo.matmul()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = program(zoo.root, *FREE, "--grpc-port", port)
        assert refused.end() == 2
    log = "".join(refused.said)
    assert f"--grpc-port {port}: Address already in use; choose another port" in log


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port"])
def test_every_port_that_is_in_use_is_named(zoo: Any, name: str) -> None:
    zoo.matmul()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = slacktide.Server(zoo.root, **{name: taken.getsockname()[1]})
        with pytest.raises(OSError, match=f"^.Errno 98. --{name.replace('_', '-')} [0-9]+: Add"):
            server.start()
    server.stop()


@pytest.mark.parametrize("port", ["http", "grpc", "control"])
@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_cannot_be_had_is_named(zoo: Any, port: str, host: str) -> None:
    """Over gRPC too, whose library reports the cause on standard error only."""
    flag = "control_host" if port == "control" else "host"
    settings = {"http_port": None, "grpc_port": None, "metrics_port": None, f"{port}_port": 0}
    server = slacktide.Server(zoo.root, **{**settings, flag: host})
    with pytest.raises(OSError, match=rf"--{flag.replace('_', '-')} {host}: [A-Z]"):
        server.start()
    server.stop()


def test_a_port_that_only_root_may_bind_is_named() -> None:
    refused = bind_error(PermissionError(errno.EACCES, "error while binding"), "http", "::", 80)
    assert refused.errno == errno.EACCES
    assert str(refused.strerror).startswith("--http-port 80: Permission denied; ports below 1024")


def test_a_server_whose_repository_is_missing_leaves_nothing_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    server = slacktide.Server(tmp_path / "nowhere")
    with pytest.raises(Exception, match="expected a repository folder"):
        server.start()
    assert threading.active_count() == threads


def test_a_warning_when_anybody_can_reach_it(
    zoo: Any, serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo.matmul()
    with caplog.at_level(logging.WARNING), serve(zoo, host="0.0.0.0") as house:
        house.good()
    assert "without TLS and without a token" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), serve(zoo, host="0.0.0.0", token_file=_token(tmp_path)):
        pass
    assert "without TLS" not in caplog.text


# ── who may do what ──────────────────────────────────────────────────────────────────────────────


def _token(folder: Path) -> Path:
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    return path


def routes_of(node: Any) -> Iterator[Any]:
    """Every route below a node of a router."""
    yield from node.routes.values()
    for child in (*node.literal.values(), *([node.parameter] if node.parameter else [])):
        yield from routes_of(child)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server that asks for a token, and allows control."""
    folder = tmp_path_factory.mktemp("guarded")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    with serve(zoo, token_file=_token(folder), allow_control=True) as house:
        yield house


def test_every_route_asks_for_the_token(guarded: Any) -> None:
    ends = guarded.server.app.front_ends
    groups = set()
    for server in (ends._servers["http"], ends._servers["metrics"]):
        for route in routes_of(server._context.router._root):
            path = re.sub(r"\{\w+\}", "matmul", route.pattern)
            groups.add(route.group)
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                answer = guarded.ask(server.port, route.method, path, "{}", headers)
                if route.group in OPEN_GROUPS:
                    assert answer.status != 401, path
                else:
                    assert answer.status == 401, (route.method, path)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert "token" in answer.error
    assert groups == set(EndpointGroup) - {EndpointGroup.PEERS}
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.ask(ends.port("http"), "GET", "/v2", None, right).status == 200
    assert guarded.ask(ends.port("metrics"), "GET", "/metrics", None, right).status == 200
    answer = guarded.infer("matmul", guarded.matmul_call(), right)
    assert answer.status == 200
    # Nothing was done on the way: the model still serves.
    assert guarded.get("/v2/models/matmul/ready").status == 200


def test_every_method_asks_for_the_token(guarded: Any) -> None:
    methods = guarded.server.app.front_ends._servers["grpc"].methods
    # Peers have a credential of their own (tests/frontends/grpc/test_peers.py).
    assert {method.group for method in methods.values()} == set(EndpointGroup) - {
        EndpointGroup.METRICS,
        EndpointGroup.PEERS,
    }
    with grpc.insecure_channel(guarded.grpc) as channel:
        for name, method in methods.items():
            for metadata in ((), (("authorization", "Bearer wrong"),)):
                call = channel.stream_stream(name)(
                    iter([b""]), metadata=metadata, timeout=0.5 if name.endswith("Watch") else 20
                )
                code = grpc.StatusCode.OK
                try:
                    list(call)
                except grpc.RpcError as error:
                    code = error.code()
                refused = code is grpc.StatusCode.UNAUTHENTICATED
                assert refused is (method.group not in OPEN_GROUPS), name
        request = messages.ServerMetadataRequest().SerializeToString()
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        assert call(request, metadata=(("authorization", f"Bearer {TOKEN}"),))


# ── foreign pages ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server on the loopback interface with a control port and no token."""
    zoo = zoo_at(tmp_path_factory.mktemp("local") / "repository")
    zoo.matmul()
    origins = ("https://app.example",)
    with serve(
        zoo, control_port=0, allow_control=True, allow_uploads=True, allowed_origins=origins
    ) as house:
        yield house


def test_a_page_can_neither_load_a_model_nor_ask_for_anything(local: Any) -> None:
    """What a browser sends for a page of another site, or of a name that was rebound to us."""
    local.zoo.matmul("wanted")
    ends = local.server.app.front_ends
    pages = (
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Content-Type": "text/plain"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    )
    for name in ("http", "metrics", "control"):
        server = ends._servers[name]
        for route in routes_of(server._context.router._root):
            path = re.sub(r"\{\w+\}", "wanted", route.pattern)
            for headers in pages:
                answer = local.ask(server.port, route.method, path, "{}", headers)
                assert (answer.status, "origin" in answer.error) == (403, True), (path, headers)
            rebound = local.ask(server.port, route.method, path, "{}", {"Host": "evil.example"})
            refused = rebound.status == 403 and "Host" in rebound.error
            assert refused is (route.group not in OPEN_GROUPS), path
    assert "state" not in local.index()["wanted"], "it was loaded"


def test_control_takes_no_body_that_a_page_may_send_unasked(local: Any) -> None:
    local.zoo.matmul("plain")
    port, path = local.server.control_port, "/v2/repository/models/plain/load"
    for kind in ("text/plain", "multipart/form-data; boundary=x"):
        answer = local.ask(port, "POST", path, "{}", {"Content-Type": kind})
        assert (answer.status, "application/json" in answer.error) == (415, True)
    assert "state" not in local.index()["plain"]
    assert local.ask(port, "POST", path, "{}").status == 200


def test_control_has_a_port_of_its_own(local: Any) -> None:
    local.zoo.matmul("own")
    for address in (local.http, local.grpc):
        module = tritonclient.http if address == local.http else tritonclient.grpc
        with module.InferenceServerClient(address) as client:
            with pytest.raises(InferenceServerException, match="--control-port") as refused:
                client.load_model("own")
            assert refused.value.status() in ("403", "StatusCode.PERMISSION_DENIED")
    with tritonclient.http.InferenceServerClient(local.control) as client:
        client.load_model("own")
        assert client.is_model_ready("own")
        assert {entry["name"] for entry in client.get_model_repository_index()} >= {"own"}
        client.unload_model("own")
        assert not client.is_model_ready("own")
    infer = "/v2/models/matmul/infer"
    assert local.ask(local.server.control_port, "POST", infer, "{}").status == 404


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_control_with_a_token_is_on_every_port(guarded: Any, module: Any) -> None:
    guarded.zoo.matmul("tokened")
    address = guarded.http if module is tritonclient.http else guarded.grpc
    headers = {"authorization": f"Bearer {TOKEN}"}
    with module.InferenceServerClient(address) as client:
        with pytest.raises(InferenceServerException, match="token is required"):
            client.load_model("tokened")
        client.load_model("tokened", headers)
        assert client.is_model_ready("tokened", headers=headers)
        client.unload_model("tokened", headers)


def test_a_page_of_a_listed_origin_may_ask_and_read(local: Any) -> None:
    page = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    port, path = local.server.http_port, "/v2/models/matmul/infer"
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    for origin, status in (("https://app.example", 200), ("https://evil.example", 405)):
        answer = local.ask(port, "OPTIONS", path, None, {"Origin": origin, **asks})
        assert answer.status == status
        allowed = answer.headers.get("access-control-allow-headers")
        assert allowed == ("x-a" if status == 200 else None)
    answer = local.infer("matmul", local.matmul_call(), page)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in local.get("/v2").headers


def test_a_page_behind_a_grpc_proxy_is_refused(local: Any) -> None:
    with grpc.insecure_channel(local.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        for header in (("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", metadata=(header,))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert call(b"")


def test_elsewhere_than_on_loopback_hosts_are_checked_only_if_stated(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    for allowed, statuses in (((), (200, 200)), (("models.example",), (200, 403))):
        with serve(zoo, host="0.0.0.0", allowed_hosts=allowed) as house:
            ask, port = house.ask, house.server.http_port
            hosts = ("Models.Example.:80", "other.example")
            answers = [ask(port, "GET", "/v2", None, {"Host": host}) for host in hosts]
            assert tuple(answer.status for answer in answers) == statuses
            live = ask(port, "GET", "/v2/health/live", None, {"Host": "other.example"})
            assert live.status == 200


def test_a_control_port_that_others_reach_is_warned_about(
    zoo: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    zoo.matmul()
    with caplog.at_level(logging.WARNING), serve(zoo, control_port=0, control_host="0.0.0.0"):
        pass
    assert "the control port listens on 0.0.0.0 without a token" in caplog.text


# ── certificates ─────────────────────────────────────────────────────────────────────────────────


def test_tls_on_every_port(zoo: Any, serve: Any, tmp_path: Path) -> None:
    zoo.matmul()
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    with serve(zoo, tls=TlsFiles(certificate, key)) as house:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        for port, path in (
            (house.server.http_port, "/v2/models/matmul"),
            (house.server.metrics_port, "/metrics"),
        ):
            with (
                socket.create_connection(("127.0.0.1", port), house.PATIENCE) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as connection,
            ):
                connection.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                )
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(f"localhost:{house.server.grpc_port}", credentials) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            answer = messages.ServerLiveResponse.FromString(method(b"", timeout=house.PATIENCE))
        assert answer.live
        with pytest.raises((ConnectionError, OSError)):  # plain text is not understood
            house.get("/v2")


def test_a_new_certificate_is_served_without_a_restart(
    zoo: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Over HTTP and gRPC, with a server name and without; what is none changes nothing."""
    monkeypatch.setattr(security, "LOOK_S", 0.05)
    zoo.matmul()
    first, second = trustme.CA(), trustme.CA()
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")

    def issue(authority: trustme.CA) -> None:
        made = authority.issue_cert("localhost", "127.0.0.1")
        made.cert_chain_pems[0].write_to_path(files.certificate)
        made.private_key_pem.write_to_path(files.key)

    def trusted(house: Any, authority: trustme.CA, name: str | None = "localhost") -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        context.check_hostname = name is not None  # without a name there is no SNI either
        address = ("127.0.0.1", house.server.http_port)
        try:
            with (
                socket.create_connection(address, house.PATIENCE) as raw,
                context.wrap_socket(raw, server_hostname=name) as connection,
            ):
                connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        except ssl.SSLCertVerificationError:
            return False

    def trusted_over_grpc(house: Any, authority: trustme.CA) -> bool:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(f"localhost:{house.server.grpc_port}", credentials) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with contextlib.suppress(grpc.RpcError):
                return bool(method(b"", timeout=house.PATIENCE))
            return False

    issue(first)
    with serve(zoo, tls=files) as house:
        assert trusted(house, first)
        assert trusted_over_grpc(house, first)
        before = house.server.app.credentials.pem
        for content in (None, b"no certificate"):
            if content is None:
                issue(second)
                house.until(lambda app: app.credentials.pem != before, "the new one is taken")
            else:
                files.certificate.write_bytes(content)
                house.until(
                    lambda app: "keeping the previous" in caplog.text, "the bad one is refused"
                )
            for name in ("localhost", None):
                assert trusted(house, second, name)
                assert not trusted(house, first, name)
            assert trusted_over_grpc(house, second)
            assert not trusted_over_grpc(house, first)


def test_sighup_takes_a_new_token_at_once(program: Any, zoo: Any, common: Any, token: Any) -> None:
    zoo.matmul()
    served = program(zoo.root, *FREE, "--token-file", token.file)
    port = served.port("http")

    def asked(value: str) -> int:
        headers = {"Authorization": f"Bearer {value}"}
        return int(common.ask(port, "GET", "/v2", None, headers).status)

    assert asked(TOKEN) == 200
    token.file.write_text("another-horse-battery")
    served.process.send_signal(signal.SIGHUP)
    while asked("another-horse-battery") != 200:
        assert served.process.poll() is None
    assert asked(TOKEN) == 401
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0
    assert "reloaded the token" in "".join(served.said)


def test_with_a_client_authority_only_its_clients_are_served(
    zoo: Any, serve: Any, tmp_path: Path
) -> None:
    zoo.matmul()
    authority, stranger = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("localhost")
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.client_ca)
    with serve(zoo, tls=files) as house:

        def over_http(client: trustme.LeafCert | None) -> bytes:
            context = ssl.create_default_context()
            authority.configure_trust(context)
            if client is not None:
                client.configure_cert(context)
            address = ("127.0.0.1", house.server.http_port)
            with (
                socket.create_connection(address, house.PATIENCE) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as connection,
            ):
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return connection.recv(1 << 16)

        def over_grpc(client: trustme.LeafCert | None) -> bool:
            pems = {}
            if client is not None:
                pems["private_key"] = client.private_key_pem.bytes()
                pems["certificate_chain"] = client.cert_chain_pems[0].bytes()
            credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), **pems)
            with grpc.secure_channel(f"localhost:{house.server.grpc_port}", credentials) as channel:
                method = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                answer = messages.ServerLiveResponse.FromString(method(b"", timeout=house.PATIENCE))
            return answer.live

        client_certificate = authority.issue_cert("client.example")
        assert over_http(client_certificate).startswith(b"HTTP/1.1 200 ")
        assert over_grpc(client_certificate)
        for unknown in (None, stranger.issue_cert("client.example")):
            with contextlib.suppress(OSError):  # the refusal may come as an alert or as an end
                assert over_http(unknown) == b""
            with pytest.raises(grpc.RpcError) as refused:
                over_grpc(unknown)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_key_that_is_not_the_certificates(zoo: Any, tmp_path: Path) -> None:
    zoo.matmul()
    authority = trustme.CA()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.issue_cert("localhost").cert_chain_pems[0].write_to_path(certificate)
    authority.issue_cert("localhost").private_key_pem.write_to_path(key)
    server = slacktide.Server(zoo.root, tls=TlsFiles(certificate, key))
    with pytest.raises(
        SecurityError, match=r"--tls-cert .*cert.pem and --tls-key .*: they do not match"
    ):
        server.start()

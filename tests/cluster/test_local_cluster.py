"""`slacktide cluster … --local` with real servers, as the user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http
import yaml
from onnx import TensorProto, helper

from slacktide.cluster.local import server_states, supervisor_of

SLACKTIDE = [sys.executable, "-m", "slacktide"]


def save_model(root: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    path = root / "neg" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))


class Cluster:
    """The command line with a state folder of its own, and a cluster's file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "shop.yaml"
        self._environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "COLUMNS": "200",
        }
        save_model(folder / "models")
        self.document = {
            "repository": "models",
            "serve": {"profile-budget": "200ms"},
            "servers": [{"name": "a"}, {"name": "b"}],
        }

    def call(self, *words: str, code: int = 0) -> str:
        self.file.write_text(yaml.safe_dump(self.document))
        done = subprocess.run(
            [*SLACKTIDE, "cluster", *words],
            capture_output=True, text=True, env=self._environment, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def up(self, code: int = 0) -> str:
        return self.call("up", "shop.yaml", "--local", code=code)

    @property
    def state(self) -> Path:
        return self.folder / "state" / "slacktide" / "clusters" / "shop"

    def servers(self) -> dict:
        return {server["name"]: server for server in server_states(self.state)}

    def until(self, condition) -> dict:
        """The servers, once `condition` holds for them; pytest's timeout ends what never comes."""
        while not condition(servers := self.servers()):
            time.sleep(0.05)
        return servers


@pytest.fixture
def cluster(tmp_path):
    shop = Cluster(tmp_path)
    yield shop
    with contextlib.suppress(AssertionError):
        shop.call("down")


def kill(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def answers(server: dict) -> bool:
    address = f"{server['host']}:{server['ports']['http']}"
    with tritonclient.http.InferenceServerClient(address) as client:
        x = tritonclient.http.InferInput("x", [1, 2], "FP32")
        x.set_data_from_numpy(np.array([[1.0, 2.0]], np.float32))
        return bool((client.infer("neg", [x]).as_numpy("y") == [[-1.0, -2.0]]).all())


def linked_peers(server: dict) -> set[str]:
    url = f"http://{server['host']}:{server['ports']['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        return set(re.findall(r'^slacktide_peer_up{peer="(\w+)"} 1$', page.read().decode(), re.M))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_servers_are_kept_whatever_is_killed(cluster):
    assert "a: ready; b: ready" in cluster.up()
    servers = cluster.servers()
    assert all(map(answers, servers.values()))
    assert linked_peers(cluster.until(lambda now: "b" in linked_peers(now["a"]))["a"]) == {"b"}
    supervisor = supervisor_of(cluster.state).pid

    # A server: another takes its place, at its address.
    kill(servers["a"]["pid"])
    after = cluster.until(
        lambda now: now["a"]["state"] == "ready" and now["a"]["pid"] != servers["a"]["pid"]
    )
    assert after["a"]["ports"] == servers["a"]["ports"]
    assert after["a"]["restarts"] == 1
    assert after["b"]["pid"] == servers["b"]["pid"]
    assert answers(after["a"])

    # The supervisor: servers go on, and the next one adopts them.
    kill(supervisor)
    unsupervised = cluster.until(lambda _: supervisor_of(cluster.state) is None)
    assert {server["state"] for server in cluster.servers().values()} == {"unsupervised"}
    assert all(map(answers, unsupervised.values()))
    assert "nothing restarts these servers" in cluster.call("status", code=1)
    cluster.up()
    adopted = json.loads(cluster.call("status", "--json"))
    assert {server["name"]: server["pid"] for server in adopted["servers"]} == {
        name: server["pid"] for name, server in after.items()
    }
    assert adopted["ready"]
    assert adopted["supervisor"] == supervisor_of(cluster.state).pid != supervisor
    assert cluster.call("down") == "stopped 2 servers\n"
    assert {server["state"] for server in cluster.servers().values()} == {"stopped"}
    assert supervisor_of(cluster.state) is None


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_up_again_changes_what_differs_one_server_at_a_time(cluster):
    cluster.up()
    first = cluster.servers()
    cluster.up()
    assert cluster.servers() == first

    cluster.document["servers"][1]["serve"] = {"max-sessions": 7}
    cluster.document["servers"].append({"name": "c"})
    output = cluster.up()
    assert "replacing b" in output
    assert "replacing a" not in output
    second = cluster.servers()
    assert second["a"]["pid"] == first["a"]["pid"]
    assert second["b"]["pid"] != first["b"]["pid"]
    assert second["b"]["ports"] == first["b"]["ports"]
    assert len({server["ports"]["http"] for server in second.values()}) == 3

    # What is no longer in the file is stopped, also if the supervisor has died meanwhile.
    kill(supervisor_of(cluster.state).pid)
    del cluster.document["servers"][0]
    cluster.up()
    third = cluster.servers()
    assert set(third) == {"b", "c"}
    assert third["b"]["pid"] == second["b"]["pid"]
    assert not Path(f"/proc/{second['a']['pid']}/exe").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_port_that_is_taken_is_reported(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster.document["servers"] = [{"name": "a", "port": port}]
        output = cluster.up(code=1)
    assert f"a: error: --http-port {port}: Address already in use" in output
    assert "error: not every server is ready" in output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_server_on_a_state_folder_names_the_first_and_no_worker_holds_it(tmp_path):
    save_model(tmp_path / "models")
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    state = tmp_path / "state"
    command = [*SLACKTIDE, "serve", str(tmp_path / "models"), "--state-dir", str(state), *ports]
    command += ["--profile-budget", "200ms"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        for line in first.stderr:
            if "ready: " in line:
                break
        written = json.loads((state / "lock").read_text())
        assert written["pid"] == first.pid
        assert re.search(rf"http 127.0.0.1:{written['ports']['http']}\b", line)
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        message = f"--state-dir {state}: in use by process {first.pid}; give each server"
        assert message in second.stderr
        inode = os.stat(state / "lock").st_ino
        family = [first.pid]
        for pid in family:
            family += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        assert len(family) > 2
        for pid in family[1:]:
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                assert descriptor.stat().st_ino != inode or "lock" not in os.readlink(descriptor)
        first.kill()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("servers: []", "shop.yaml: servers: expected at least 1, got none"),
        ("{}", "expected a key 'servers'"),
        ("servers: [{name: a}]", "servers: a has no repository, nor has the file"),
        ("repository: m\nserver: []", "server: unknown key; did you mean 'servers'?"),
        ("repository: m\nservers: [{name: a, prot: 1}]", "servers[0].prot: unknown key; did you"),
        ("repository: m\nservers: [{name: a}, {name: a}]", "servers: two are named 'a'"),
        (
            "repository: m\nserve: {token_file: t}\nservers: [{name: a}, {name: b}]",
            "serve.token-file: servers then need 'peer_token_file' to link",
        ),
        ("repository: m\nservers: [{name: ../a}]", "servers[0].name: expected letters, digits"),
        ("repository: m\nservers: [{name: a, port: 0}]", "servers[0].port: expected"),
        (
            "repository: m\nservers: [{name: a, serve: {http_port: 80}}]",
            "servers[0].serve: http-port: set by 'port' in this file",
        ),
        (
            "repository: m\nservers: [{name: a, serve: {scheduller: edf}}]",
            "servers: a: serve: unknown key 'scheduller'; did you mean 'scheduler'?",
        ),
        (
            "repository: m\nservers: [{name: a, serve: {scheduler: nope}}]",
            "servers: a: serve: --scheduler: expected a scheduler, got 'nope'",
        ),
        ("repository: m\nservers: [{name: a, replicas: {min: 3, max: 2}}]", "servers[0].replicas:"),
        ("repository: [", "shop.yaml: line 1"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, monkeypatch, text, complaint):
    from typer.testing import CliRunner

    from slacktide.cli.main import app

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    done = CliRunner().invoke(app, ["cluster", "up", str(file), "--local"])
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.startswith(f"error: {file}")
    assert not (tmp_path / "state").exists()


def test_without_a_cluster_the_command_to_start_one_is_told(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from slacktide.cli.main import app

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for verb in ("status", "down"):
        done = CliRunner().invoke(app, ["cluster", verb])
        assert done.exit_code == 2
        assert "slacktide cluster up FILE --local" in done.stderr

"""Pools of servers on a Ray cluster of this machine (`make test-ray`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.cluster.folder_lock import LockHolder, holder_of

pytest.importorskip("ray", reason="needs Ray: make test-ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(230)]

BIN = Path(sys.executable).parent
POLL_S = 0.05
LOCKS = {"replica": "replica", "supervisor": "lock", "server": "servers/pool-127.0.0.1-0/lock"}


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class RayCluster:
    """A head and a client, with folders of their own for all that they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # as docs/cluster.md says; else a busy machine starves it
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        self.address = f"127.0.0.1:{free_port()}"
        self.environment["RAY_ADDRESS"] = self.address
        subprocess.run(
            [BIN / "ray", "get-auth-token", "--generate"],
            env=self.environment, check=True, capture_output=True,
        )  # fmt: skip
        self.start_head()

    def start_head(self) -> None:
        command = [BIN / "ray", "start", "--head", "--block", "--port", self.address.split(":")[1]]
        command += ["--node-ip-address", "127.0.0.1", "--include-dashboard", "false"]
        command += ["--num-cpus", "8", "--temp-dir", str(self.folder / "r")]
        self.head = subprocess.Popen(
            command, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.client: subprocess.Popen[str] | None = None

    def slacktide(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "slacktide", *words],
            env=self.environment, cwd=self.folder, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> None:
        """Run the cluster's file, once the head answers."""
        while True:
            with contextlib.suppress(AssertionError):
                self.slacktide("cluster", "up", "shop.yaml")
                return
            assert self.head.poll() is None

    def ask(self, command: str) -> object:
        """Let the client do something."""
        if self.client is None:
            self.client = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ray_client.py"))],
                env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.client.stdin.write(f"{command}\n")
        self.client.stdin.flush()
        return json.loads(self.client.stdout.readline())["answer"]

    def family(self) -> set[int]:
        """The processes of the head, without servers."""
        pids = [self.head.pid]
        for pid in pids:
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return set(pids)

    def kill_head(self) -> None:
        """Kill every process of Ray at once."""
        if self.client is not None:
            self.client.kill()
            self.client.communicate()
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.head.wait()

    @property
    def place(self) -> Path:
        """The folder of the pool's first supervisor."""
        return self.folder / "state/slacktide/clusters/shop/pool-127.0.0.1-0"

    def holder(self, lock: str, previous: int = 0) -> LockHolder:
        """The holder of a lock in `LOCKS`, once it is another than `previous`."""
        while True:
            holder = holder_of(self.place / LOCKS[lock])
            if holder is not None and holder.pid not in (0, previous):
                return holder
            time.sleep(POLL_S)

    def await_ready(self, port: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{port}/v2/health/ready"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    assert answer.status == 200
                return
            time.sleep(POLL_S)


def save_model(root: Path, name: str, width: int, *steps: onnx.NodeProto, **weights: Any) -> None:
    graph = helper.make_graph(
        steps,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    path = root / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    folder = tmp_path_factory.mktemp("ray")
    save_model(folder / "models", "neg", 2, helper.make_node("Neg", ["x"], ["y"]))
    names = ["x", *(f"h{step}" for step in range(49)), "y"]
    steps = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    save_model(folder / "models", "slow", 1024, *steps, w=np.eye(1024, dtype=np.float32))
    (folder / "models" / "slow" / "slacktide.yaml").write_text("max_batch: 1\nslo: 200ms\n")
    (folder / "shop.yaml").write_text(
        "repository: models\nserve: {profile-budget: 200ms}\nservers:\n"
        f"  - {{name: pool, port: {free_port()}, per_node: 2, replicas: {{min: 1, max: 2}}}}\n"
    )
    cluster = RayCluster(folder)
    cluster.up()
    yield cluster
    cluster.kill_head()
    for lock in (folder / "state").rglob("lock"):
        if (holder := holder_of(lock)) is not None:
            os.kill(holder.pid, signal.SIGKILL)


def test_another_deployment_calls_the_pool(ray: RayCluster) -> None:
    assert ray.ask("infer") == [-1.0, -2.0]
    assert "unknown model 'nope'" in ray.ask("refused")
    assert ray.ask("proxies") == []


def test_a_killed_replica_leaves_its_server_to_the_next(ray: RayCluster) -> None:
    server, replica, supervisor = map(ray.holder, ("server", "replica", "supervisor"))
    assert len({os.getsid(holder.pid) for holder in (server, replica, supervisor)}) == 3
    os.kill(replica.pid, signal.SIGKILL)
    assert ray.holder("replica", replica.pid).pid != server.pid
    assert ray.holder("supervisor").pid == supervisor.pid
    answer = ray.ask("server")
    assert (answer["pid"], answer["phase"]) == (server.pid, "ready")


def test_a_killed_server_is_started_again(ray: RayCluster) -> None:
    server, replica = ray.holder("server"), ray.holder("replica")
    os.kill(server.pid, signal.SIGKILL)
    ray.holder("server", server.pid)
    ray.await_ready(server.document["ports"]["http"])
    assert ray.holder("replica").pid == replica.pid


def test_a_killed_supervisor_is_started_again_and_adopts_the_server(ray: RayCluster) -> None:
    server, supervisor = ray.holder("server"), ray.holder("supervisor")
    os.kill(supervisor.pid, signal.SIGKILL)
    ray.holder("supervisor", supervisor.pid)
    while ray.ask("server")["phase"] != "ready":
        time.sleep(POLL_S)
    assert ray.holder("server").pid == server.pid


def test_another_server_is_asked_for_when_more_is_offered_than_one_can_do(ray: RayCluster) -> None:
    port = ray.holder("server").document["ports"]["http"]
    command = [sys.executable, "-m", "slacktide", "load", f"127.0.0.1:{port}", "--model", "slow"]
    load = subprocess.Popen(
        [*command, "--arrivals", "poisson:300", "--duration", "60s"],
        env=ray.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while ray.ask("asked_for") != 2:
        assert load.poll() is None
        time.sleep(POLL_S)
    load.terminate()
    load.wait()


def test_the_death_of_ray_is_not_that_of_servers(ray: RayCluster) -> None:
    server = ray.holder("server")
    port = server.document["ports"]["http"]
    ray.kill_head()
    while holder_of(ray.place / LOCKS["replica"]) is not None:
        time.sleep(POLL_S)
    assert ray.holder("server").pid == server.pid
    ray.await_ready(port)
    os.kill(server.pid, signal.SIGKILL)  # it is started again without Ray
    server = ray.holder("server", server.pid)
    ray.await_ready(port)
    ray.start_head()
    ray.up()
    assert ray.ask("server")["pid"] == server.pid


def test_down_stops_servers_also_those_that_a_dead_replica_has_left(ray: RayCluster) -> None:
    shown = json.loads(ray.slacktide("cluster", "status", "--json"))
    assert shown["ready"]
    left = ray.place.with_name("pool-127.0.0.1-1") / "servers" / "pool-127.0.0.1-1"
    left.mkdir(exist_ok=True, parents=True)
    if holder_of(left / "lock") is None:
        script = Path(__file__).parents[1] / "cluster" / "stand_in_server.py"
        subprocess.Popen([sys.executable, script, "--state-dir", left], env=ray.environment)
        while not (holder := holder_of(left / "lock")) or "drain_s" not in holder.document:
            time.sleep(POLL_S)
    ray.slacktide("cluster", "down")
    locks = [left / "lock", *(ray.place / name for name in LOCKS.values())]
    while any(map(holder_of, locks)):
        time.sleep(POLL_S)


def test_the_policy_adds_up_shares() -> None:
    from types import SimpleNamespace

    from slacktide.ray import SHARE, SharePolicy

    def ask(*shares: float, replicas: int, target: int) -> float:
        series = {
            str(number): [SimpleNamespace(value=9.0), SimpleNamespace(value=share)]
            for number, share in enumerate(shares)
        }
        context = SimpleNamespace(
            raw_metrics={SHARE: series}, current_num_replicas=replicas, target_num_replicas=target
        )
        return SharePolicy(0.8)(context)[0]

    assert ask(0.7, replicas=1, target=1) == 1
    assert ask(1.5, replicas=1, target=1) == 2
    assert ask(0.9, 0.8, replicas=2, target=2) == 3
    assert ask(0.1, 0.2, replicas=2, target=2) == 1
    assert ask(0.1, replicas=2, target=2) == 2  # the other has not reported yet
    assert ask(replicas=0, target=1) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to raise a priority")
def test_a_server_gets_the_priority_of_other_programs() -> None:
    script = "import os; from slacktide.ray import _undo_niceness; before = os.nice(0); os.nice(15)"
    script += "; _undo_niceness(); assert os.nice(0) <= before"
    environment = {name: os.environ[name] for name in os.environ if name != "RAY_worker_niceness"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def test_arrays_that_cannot_be_sent() -> None:
    from slacktide.ray import _decode, _encode

    with pytest.raises(RuntimeError, match="words: expected numbers, got object"):
        _encode({"words": np.array(["a"], object)}, {})
    head, body = _encode({"x": np.arange(6, dtype=">i8").reshape(2, 3)}, {"timeout": 5})
    document = json.loads(head)
    assert document["inputs"][0]["shape"] == [2, 3]
    answer = json.dumps({"outputs": document["inputs"]}).encode()
    assert _decode(answer + body, len(answer))["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_builder_takes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slacktide.ray import app

    with pytest.raises(ValueError, match="SLACKTIDE_CLUSTER=FILE"):
        app({})
    file = tmp_path / "shop.yaml"
    file.write_text("repository: models\nservers: [{name: first}, {name: second}]\n")
    assert app({"file": str(file)})._bound_deployment.name == "first"
    monkeypatch.setenv("SLACKTIDE_CLUSTER", str(file))
    assert app({})._bound_deployment.name == "first"

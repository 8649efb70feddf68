"""Plans of local clusters: ports, paths, and how a supervisor carries a plan out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.cluster.test_folder_lock import HOLD
from typer.testing import CliRunner

from slacktide.cli.cluster import _await_ready
from slacktide.cli.main import app, load_verb
from slacktide.cluster import FolderLock, local
from slacktide.cluster.file import PATHS, read_cluster_file
from slacktide.cluster.local import (
    ClusterPlan,
    LocalCluster,
    keep_supervised,
    place,
    read_plan,
    server_states,
    supervisor_of,
)
from slacktide.cluster.supervisor import ServerCommand, ServerPhase

SERVER = str(Path(__file__).with_name("stand_in_server.py"))


FILE = Path("shop.yaml")
PAUSED = ServerPhase.PAUSED


def cluster_file(folder: Path, **document):
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump({"repository": "models", **document}))
    return read_cluster_file(path)


def ports(folder: Path) -> dict[str, int]:
    return dict(read_plan(folder).ports)


def test_free_ports_are_apart_from_those_of_a_pool(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "FIRST_PORT", 21_000)
    pool = {"name": "pool", "replicas": 2, "port": 21_000}
    place(cluster_file(tmp_path, servers=[{"name": "a"}, pool]), tmp_path, FILE)
    assert ports(tmp_path)["pool-2"] == 21_010
    assert ports(tmp_path)["a"] >= 21_020


def test_a_server_gives_up_its_port_to_one_that_states_it(tmp_path):
    place(cluster_file(tmp_path, servers=[{"name": "a"}]), tmp_path, FILE)
    port = ports(tmp_path)["a"]
    servers = [{"name": "a"}, {"name": "b", "port": port + 1}]
    place(cluster_file(tmp_path, servers=servers), tmp_path, FILE)
    assert ports(tmp_path)["b"] == port + 1
    assert abs(ports(tmp_path)["a"] - port - 1) > 2


def test_flags_of_files_are_relative_to_the_clusters_file(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    cluster = cluster_file(
        tmp_path, serve={"tls_cert": "c.pem"}, servers=[{"name": "a", "serve": {"record": "r"}}]
    )
    assert cluster.serve == {"tls-cert": str(tmp_path / "c.pem")}
    assert cluster.servers[0].serve == {"record": str(tmp_path / "r")}
    files = {
        parameter.opts[0].removeprefix("--")
        for parameter in load_verb("serve").params
        if getattr(parameter, "metavar", None) == "FILE"
    }
    assert files - {"peer-token-file"} == PATHS


def test_a_running_server_keeps_the_file_of_its_flags(tmp_path):
    place(cluster_file(tmp_path, servers=[{"name": "a"}]), tmp_path, FILE)
    earlier = read_plan(tmp_path).servers[0].arguments
    place(cluster_file(tmp_path, servers=[{"name": "a", "cores": 1}]), tmp_path, FILE)
    assert read_plan(tmp_path).servers[0].arguments != earlier
    assert Path(earlier[earlier.index("--config") + 1]).exists()


def write_plan(folder: Path, **behaviours: str) -> None:
    """Plan stand-ins for servers, by name."""
    servers = []
    for name, behaviour in behaviours.items():
        state = folder / "servers" / name
        state.mkdir(parents=True, exist_ok=True)
        arguments = (sys.executable, SERVER, behaviour, "--state-dir", str(state))
        servers.append(ServerCommand(name, arguments, state))
    local.write_plan(folder, ClusterPlan(FILE, servers=tuple(servers)))


HALTED = "halted: a goes on unchanged: error: --grpc-port 8001: Address already in use"


async def until(folder: Path, condition) -> dict[str, dict]:
    async with asyncio.timeout(60):
        while not condition(servers := {s["name"]: s for s in server_states(folder)}):
            await asyncio.sleep(0.02)
    return servers


@contextlib.asynccontextmanager
async def supervised(folder: Path):
    """A supervisor in this process, which dies at the end; servers go on."""
    cluster = LocalCluster(folder)
    task = asyncio.create_task(cluster.run())
    try:
        yield
    finally:
        tasks = [task, *(supervisor.task for supervisor in cluster._supervisors.values())]
        for pending in tasks:
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cluster._lock.release()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "__version__", "1")  # the stand-ins'
    yield tmp_path
    for server in server_states(tmp_path):
        if server["pid"]:
            os.kill(server["pid"], signal.SIGKILL)


@pytest.fixture
def run():
    """Runs a test on asyncio's own loop, which the supervising process uses."""
    return asyncio.run


async def test_a_mended_server_does_not_wait_for_the_end_of_its_pause(folder, run, monkeypatch):
    monkeypatch.setattr("slacktide.cluster.supervisor._FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr("slacktide.cluster.supervisor._LONGEST_PAUSE_S", 1000.0)
    write_plan(folder, a="fails")
    async with supervised(folder):
        await until(folder, lambda servers: servers["a"]["state"] == PAUSED)
        write_plan(folder, a="serves")
        await until(folder, lambda servers: servers["a"]["state"] == "ready")


async def test_after_a_halted_update_every_server_is_supervised(folder, run, monkeypatch):
    write_plan(folder, a="serves", b="serves")
    async with supervised(folder):
        await until(folder, lambda servers: {s["state"] for s in servers.values()} == {"ready"})
    write_plan(folder, a="fails", b="serves2")
    async with supervised(folder):
        servers = await until(
            folder, lambda servers: {s["state"] for s in servers.values()} == {"ready"}
        )
        async with asyncio.timeout(60):
            while not supervisor_of(folder).document.get("update", "").startswith(HALTED):
                await asyncio.sleep(0.02)
        os.kill(first := servers["b"]["pid"], signal.SIGKILL)
        await until(folder, lambda servers: servers["b"]["pid"] not in (None, 0, first))


@pytest.mark.slow
async def test_a_supervisor_that_dies_is_followed_by_another(tmp_path, run):
    write_plan(tmp_path, a="fails")
    keeping, pids = asyncio.create_task(keep_supervised(tmp_path)), set[int]()
    async with asyncio.timeout(60):
        while len(pids) < 2:
            await asyncio.sleep(0.02)
            holder = supervisor_of(tmp_path)
            if holder is not None and holder.pid:
                pids.add(holder.pid)
                if len(pids) == 1:
                    os.kill(holder.pid, signal.SIGKILL)
    keeping.cancel()
    await local.stop_all(tmp_path)
    assert supervisor_of(tmp_path) is None


def test_up_waits_for_the_newest_plan(tmp_path, monkeypatch):
    """Another `up` may write one meanwhile; the supervisor carries out only that."""
    write_plan(tmp_path, a="serves")
    lock = FolderLock(tmp_path / "lock")
    lock.acquire(revision="earlier")
    states = [{"name": "a", "state": "ready"}]

    def server_states(_):
        yield from states
        if supervisor_of(tmp_path).document["revision"] == "earlier":
            write_plan(tmp_path, b="serves")
            lock.write(revision=read_plan(tmp_path).revision)

    monkeypatch.setattr(local, "server_states", server_states)
    assert _await_ready(tmp_path, 60.0, shown=False) == ""
    lock.release()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The folder of a cluster that seems to run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "slacktide" / "clusters" / "shop"
    folder.mkdir(parents=True)
    lock = FolderLock(folder / "lock")
    lock.acquire()
    yield folder
    lock.release()


def up(folder: Path, *words: str):
    cluster_file(folder, servers=[{"name": "a"}])
    return CliRunner().invoke(app, ["cluster", "up", str(folder / "shop.yaml"), *words])


@pytest.mark.parametrize(
    ("plan", "words", "complaint"),
    [
        (ClusterPlan(Path("/other/shop.yaml")), ["--local"], "/other/shop.yaml has this name too"),
        (ClusterPlan(Path("/other/shop.yaml")), [], "shop runs on this machine: add --local"),
        (ClusterPlan(FILE, on_ray=True), ["--local"], "shop runs on Ray: leave out --local"),
    ],
)
def test_a_cluster_that_runs_is_not_taken_over(tmp_path, shop, plan, words, complaint):
    local.write_plan(shop, plan)
    done = up(tmp_path, *words)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert read_plan(shop) == plan


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_plan_that_cannot_be_read_is_named(tmp_path, shop, command):
    (shop / local.PLAN).write_text('{"servers": []}')
    cluster_file(tmp_path, servers=[{"name": "a"}])
    done = CliRunner().invoke(app, ["cluster", command, str(tmp_path / "shop.yaml")])
    assert done.exit_code == 2
    assert "not a plan of this release" in done.stderr


@pytest.mark.parametrize("command", ["status", "down"])
def test_another_file_of_its_name_neither_shows_nor_ends_a_cluster(tmp_path, shop, command):
    other = tmp_path / "other" / "shop.yaml"
    other.parent.mkdir()
    other.touch()
    local.write_plan(shop, ClusterPlan(other, on_ray=True))
    cluster_file(tmp_path, servers=[{"name": "a"}])
    done = CliRunner().invoke(app, ["cluster", command, str(tmp_path / "shop.yaml")])
    assert done.exit_code == 2
    assert f"{other} has this name too" in done.stderr
    assert read_plan(shop).file == other


def test_what_went_wrong_is_also_told_as_json(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(local, "start_supervisor", lambda folder: 0)
    monkeypatch.setattr("slacktide.cli.cluster._SUPERVISOR_S", 0.0)
    done = up(tmp_path, "--local", "--json")
    assert done.exit_code == 1
    assert "the supervisor ended; logs are in" in done.stderr
    shown = json.loads(done.stdout)
    assert not shown["ready"]
    assert shown["servers"][0]["state"] == "stopped"


@pytest.mark.slow
def test_the_supervisor_of_an_earlier_release_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "slacktide" / "clusters" / "shop"
    state.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as earlier:  # fmt: skip
        assert earlier.stdout.readline() == "held\n"
        cluster_file(tmp_path, servers=[{"name": "a"}])
        words = ["cluster", "up", str(tmp_path / "shop.yaml"), "--local"]
        assert CliRunner().invoke(app, words).exit_code == 1  # there are no models
        assert earlier.poll() == -signal.SIGKILL
    assert CliRunner().invoke(app, ["cluster", "down"]).exit_code == 0


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    cluster_file(tmp_path, servers=[{"name": "a"}])
    done = CliRunner().invoke(app, ["cluster", "up", str(tmp_path / "shop.yaml"), "--local"])
    assert done.exit_code == 2
    assert f"{tmp_path}/file/slacktide/clusters/shop: Not a directory" in done.stderr


def test_a_cluster_that_was_stopped_does_not_hide_the_one_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("one", "two"):
        (tmp_path / "slacktide" / "clusters" / name).mkdir(parents=True)
        write_plan(tmp_path / "slacktide" / "clusters" / name)
    lock = FolderLock(tmp_path / "slacktide" / "clusters" / "two" / "lock")
    lock.acquire()
    done = CliRunner().invoke(app, ["cluster", "status", "--json"])
    lock.release()
    assert json.loads(done.stdout)["name"] == "two"

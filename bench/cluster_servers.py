"""Servers of this machine that answer for each other, for `cluster_live`, `cluster_faults` and
`cluster_ray`.

Their model answers from a stated profile (60 ms alone, 340 ms for 8 rows, deadline 500 ms), so two
cores can play three servers.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import orjson
from onnx import TensorProto, helper

from bench import servers
from bench.machine import CACHE
from slacktide.executors.onnx_file import OnnxFile
from slacktide.lab.load.request_log import RequestLog
from slacktide.lab.load.spec import LoadSpec, Stream, Target, Transport
from slacktide.lab.workloads import Fixed, Poisson
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.profiles import LatencyTable, ProfileRecord

FIXED_S, ROW_S, MOST_ROWS, SLO_S = 0.020, 0.040, 8, 0.5
CAPACITY = MOST_ROWS / (FIXED_S + MOST_ROWS * ROW_S)
"""Requests per second of one server."""
WIDE = 25_600
"""Floats of a request of 100 KB."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the servers."""

    machine: str
    pid: int
    port: int
    metrics_port: int
    grpc_port: int
    host: str = "127.0.0.1"

    def fetch(self, path: str, port: int | None = None) -> bytes:
        url = f"http://{self.host}:{port or self.port}{path}"
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bytes(answer.read())

    def uses(self, machine: str) -> bool:
        """Whether it forwards to the peer of this name."""
        document = orjson.loads(self.fetch("/v2/slacktide/peers"))
        return any(
            peer["machine"] == machine and peer["state"] == "up" for peer in document["peers"]
        )

    def is_ready(self) -> bool:
        try:
            self.fetch("/v2/health/ready")
        except OSError:
            return False
        return True

    def forwarded(self) -> int:
        """Number of calls that it has sent to peers."""
        return self.total("slacktide_forwarded_requests_total", 'direction="out"')

    def total(self, family: str, label: str) -> int:
        """Sum of the metric's series with this label."""
        lines = self.fetch("/metrics", self.metrics_port).decode().splitlines()
        return round(
            sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"{family}{{") and label in line
            )
        )


def make_repository(name: str) -> Path:
    """Write the models, with profiles that state their times."""
    root = CACHE / name / "models"
    shutil.rmtree(root.parent, ignore_errors=True)
    slow = f"executor: profiled\nmax_batch: {MOST_ROWS}\nslo: {SLO_S * 1e3:g}ms\n"
    save_model(root, "slow", slow, 2, FIXED_S, ROW_S)
    save_model(root, "wide", "executor: profiled\nmax_batch: 4\nslo: 2s\n", WIDE, 0.002, 0.0005)
    save_model(root, "blocker", "executor: profiled\nmax_batch: 1\n", 2, 1.0, 0.0)
    save_model(root, "tiny", "max_batch: 8\nslo: 2s\n", 2)
    return root


def save_model(
    root: Path, name: str, settings: str, floats: int, fixed_s: float = 0.0, row_s: float = 0.0
) -> None:
    """The mean of each row of `floats` floats. Its stored profile states these times; without
    times, it is measured."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (root / name / "slacktide.yaml").write_text(settings)
    x, y = (
        helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", width])
        for tensor, width in (("x", floats), ("y", 1))
    )
    mean = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])
    graph = helper.make_graph([mean], name, [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    if not fixed_s:
        return
    (definition,) = Repository(root).read(name)
    file = OnnxFile(definition.model_path, definition.data_root)
    interface = file.interface(definition.settings.max_batch)
    assert interface is not None
    table = LatencyTable.linear(fixed_s, row_s, interface.max_batch)
    document = {
        "record": ProfileRecord(table, {"x": (floats,)}).to_dict(),
        "interface": interface.to_dict(),
        "dependence": "",
    }
    ProfileStore().save(definition, ProfileCache._key(definition), document)


@contextlib.contextmanager
def started(
    repository: Path,
    count: int,
    peers: Callable[[int, Sequence[int]], Sequence[str]],
    *,
    ports: Sequence[int] = (),
    flags: Sequence[str] = (),
    places: Sequence[tuple[str, list[str]]] = (),
) -> Iterator[list[Member]]:
    """`count` servers. `peers` chooses the addresses that a server dials, by its number and the
    gRPC ports of all; `places`: address of each, and the words before its command. Raises
    ServerFailedError."""
    ports = ports or servers.free_ports(3 * count)
    http, grpc, metrics = ports[:count], ports[count : 2 * count], ports[2 * count :]
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(count):
            host, prefix = places[number] if places else ("127.0.0.1", [])
            dialled = peers(number, grpc)
            command = [*prefix, sys.executable, "-m", "slacktide", "serve", str(repository), *flags]
            command += ["--host", host]
            for kind, of_kind in (("http", http), ("grpc", grpc), ("metrics", metrics)):
                command += [f"--{kind}-port", str(of_kind[number])]
            if dialled:
                command += ["--machine", f"s{number}", "--peers", ",".join(dialled)]
            up = stack.enter_context(
                servers.process("slacktide", command, http[number], "/v2/health/ready", host)
            )
            members.append(
                Member(f"s{number}", up.pid, http[number], metrics[number], grpc[number], host)
            )
        yield members


def everyone(number: int, grpc: Sequence[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for peer, port in enumerate(grpc) if peer != number]


def nobody(number: int, grpc: Sequence[int]) -> list[str]:
    return []


def wait_linked(members: Sequence[Member]) -> None:
    """Wait until all use each other. Raises TimeoutError."""
    pairs = [(member, peer) for member in members for peer in members if peer is not member]
    give_up = time.monotonic() + 30.0
    while pairs:
        with contextlib.suppress(OSError):  # a link that was cut may still be coming back
            pairs = [pair for pair in pairs if not pair[0].uses(pair[1].machine)]
        if time.monotonic() > give_up:
            raise TimeoutError("the servers are not linked after 30 s")
        time.sleep(0.05)


def load_spec(member: Member, model: str, rate: float, seconds: float, seed: int = 1) -> LoadSpec:
    """Poisson arrivals at one server."""
    return LoadSpec(
        target=Target(Transport.HTTP, member.host, member.port),
        streams=(Stream(model, Poisson(rate), Fixed(SLO_S)),),
        duration=seconds,
        warmup=0.0,
        seed=seed,
        patience=2.0,
    )


def on_time(log: RequestLog) -> float:
    return float((log.endings() == 0).mean())


def unended(log: RequestLog) -> int:
    """Number of requests without an outcome."""
    return log.submitted - log.ended_count

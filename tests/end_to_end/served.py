"""A server of the test's own, with profiles that earlier servers of the session measured."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.calls import (
    FOREVER,
    PATIENCE,
    Answer,
    ask,
    call_of,
    filter_call,
    infer,
    matmul_call,
    slow_call,
    spin_call,
)
from tests.end_to_end.zoo import WEIGHT, Zoo

import slacktide
from slacktide.engine.invariants import check_invariants
from slacktide.models.repository.profile_store import hash_file
from slacktide.server.app import App


class House:
    """A running server, and what tests ask of it."""

    FOREVER = FOREVER
    PATIENCE = PATIENCE
    WEIGHT = WEIGHT
    ask = staticmethod(ask)
    call_of = staticmethod(call_of)
    spin_call = staticmethod(spin_call)
    slow_call = staticmethod(slow_call)
    filter_call = staticmethod(filter_call)
    matmul_call = staticmethod(matmul_call)

    def __init__(self, server: slacktide.Server, zoo: Zoo) -> None:
        self.server = server
        self.zoo = zoo
        self._pool: ThreadPoolExecutor | None = None

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.server.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    @property
    def control(self) -> str:
        """Where models may be loaded and unloaded."""
        return f"127.0.0.1:{self.server.control_port}"

    def get(self, path: str) -> Answer:
        return ask(self.server.http_port, "GET", path)

    def post(self, path: str, document: Any = None) -> Answer:
        body = None if document is None else json.dumps(document)
        port = self.server.control_port if "/repository/models/" in path else 0
        return ask(port or self.server.http_port, "POST", path, body)

    def infer(
        self, model: str, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Answer:
        return infer(self.server.http_port, model, document, headers)

    def spawn(self, work: Callable[..., Any], *args: Any, **named: Any) -> Future[Any]:
        """Do this in the background."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(64)
        return self._pool.submit(work, *args, **named)

    def later(
        self, model: str, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Future[Answer]:
        """`infer` in the background."""
        return self.spawn(self.infer, model, document, headers)

    def good(self) -> None:
        """A plain request is served, whatever happened before."""
        answer = self.infer("matmul", matmul_call())
        assert answer.status == 200, answer
        assert answer.json["outputs"][0]["data"] == pytest.approx(WEIGHT[0].tolist())

    def until(self, condition: Callable[[App], bool], what: str) -> None:
        """Wait until something is so, as seen on the server's own loop."""

        async def wait(app: App) -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition(app):
                    await asyncio.sleep(0.002)

        try:
            self.server.call(wait)
        except TimeoutError:
            pytest.fail(f"it never came to pass that {what}")

    def look(self, read: Callable[[App], Any]) -> Any:
        """What `read` says, on the server's loop."""

        async def looked(app: App) -> Any:
            return read(app)

        return self.server.call(looked)

    def running(self, model: str, *, rows: int = 1) -> None:
        """Wait until a batch of so many rows of `model` is running."""
        self.until(
            lambda app: any(
                running.batch.replica.pool.model == model and running.batch.rows >= rows
                for running in app.engine.state.running.values()
            ),
            f"a batch of {rows} of {model!r} runs",
        )

    def queued(self, model: str, count: int) -> None:
        """Wait until so many requests of `model` wait."""
        self.until(
            lambda app: (
                sum(
                    len(pool.scheduler) + len(pool.quarantine)
                    for id, pool in app.engine.state.pools.items()
                    if id.model == model
                )
                >= count
            ),
            f"{count} requests of {model!r} wait",
        )

    def counts(self, model: str) -> dict[str, int]:
        """Outcomes of `model` so far, by the label of their reason."""

        def read(app: App) -> dict[str, int]:
            counts = app.engine.state.request_table.counts.get(model)
            return {} if counts is None else {r.label: n for r, n in counts.by_reason.items() if n}

        return dict(self.look(read))

    @contextlib.contextmanager
    def taken_to_hang_after(self, seconds: float) -> Iterator[None]:
        """Lower the hang limit for a while."""
        self.look(lambda app: _be_patient(app, seconds))
        yield
        self.look(lambda app: _be_patient(app, PATIENCE))

    def alone(self, model: str) -> float:
        """Seconds that the server expects one row of `model` to take."""

        def read(app: App) -> float:
            version = app.catalog.find(model, None)
            assert version is not None
            return version.expected_alone

        return float(self.look(read))

    def worker(self, model: str, variant: str = "") -> int:
        """The process that serves `model`, or one of its variants."""

        def read(app: App) -> int:
            replicas = app.driver.replicas
            for replica in replicas._replicas.values():
                if replica.pool.model == model and variant in ("", replica.pool.variant):
                    pid = replicas._handles[replica.id].pid
                    assert pid is not None
                    return pid
            raise AssertionError(f"{model} has no replica")

        return int(self.look(read))

    def index(self) -> dict[str, dict[str, str]]:
        """The repository's index by name (the last version of each)."""
        return {entry["name"]: entry for entry in self.post("/v2/repository/index").json}

    @contextlib.contextmanager
    def hold(self, model: str = "spin") -> Iterator[None]:
        """Keep the lane busy with a batch of `model` that only ends because its client leaves."""
        with self.open_call(model, spin_call(FOREVER)) as connection:
            self.running(model)
            yield
            connection.close()
            self.until(
                lambda app: (
                    not any(
                        running.batch.replica.pool.model == model
                        for running in app.engine.state.running.values()
                    )
                ),
                "the batch that held the lane ends",
            )

    def open_call(self, model: str, document: dict[str, Any]) -> socket.socket:
        """Send an inference request; whoever gets the socket may read the answer, or leave."""
        body = json.dumps(document).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(body)}"
        connection = socket.create_connection(("127.0.0.1", self.server.http_port), PATIENCE)
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        return connection

    def settle(self) -> None:
        """Wait until nothing is in flight; then nothing may be left behind."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.look(lambda app: app.driver.reclaim())
        self.until(lambda app: app.driver.in_flight == 0, "all requests have ended")
        self.look(_nothing_left)


def _nothing_left(app: App) -> None:
    check_invariants(app.engine)
    assert app.driver.replicas._batches == {}
    assert app.data.limits.clients == frozenset()
    for version in app.catalog.all():
        assert version.arena.bytes_in_use == 0, version.name
        assert version.in_flight == 0, version.name
        version.arena.check_invariants()
    assert app.models._budget.bytes_in_use == 0


@contextlib.contextmanager
def housed(
    zoo: Zoo, *, hang_floor: float = PATIENCE, measure: bool = False, **settings: Any
) -> Iterator[House]:
    """Serve `zoo`, and see that nothing is left behind.

    `hang_floor`: no batch is taken to hang before (seconds). The product says 1; machines that
    run tests may stand still for longer, and tests make models work for longer than they said.
    `measure`: measure every model, even if a server of this session has measured its like.
    """
    if not measure:
        _fetch_profiles(zoo.root)
    with slacktide.Server(zoo.root, **{"profile_budget_s": 0.2, **settings}) as server:
        _store_profiles(zoo.root)
        house = House(server, zoo)
        house.look(lambda app: _be_patient(app, hang_floor))
        yield house
        house.settle()


_PROFILES: dict[bytes, dict[str, bytes]] = {}
"""Profiles that servers of this session have measured: by model folder, file by file."""


def _fetch_profiles(root: Path) -> None:
    """Put the profiles of models that were served before into the repository."""
    for folder in root.iterdir():
        key, profiles = _identity(folder)
        for name, content in ({} if profiles else _PROFILES.get(key, {})).items():
            (folder / name).write_bytes(content)


def _store_profiles(root: Path) -> None:
    for folder in root.iterdir():
        key, profiles = _identity(folder)
        if profiles:
            _PROFILES.setdefault(key, profiles)


TINY_BYTES = 8192
"""A model of fewer bytes takes hardly longer for several rows than for one."""


def _smooth(profile: bytes) -> bytes:
    """The profile of a tiny model without the noise of a busy machine, which may say that two rows
    take five times as long as one: the scheduler would then not batch them."""
    document = json.loads(profile)
    table = document.get("profile", {}).get("record", {}).get("table", {})
    for quantile in ("p50_s", "p99_s"):
        rows = table.get(quantile, [])
        for batch, times in zip(table.get("batches", []), rows, strict=False):
            most = 1.0 + 0.05 * (batch - 1)
            times[:] = [min(own, most * single) for own, single in zip(times, rows[0], strict=True)]
    return json.dumps(document).encode()


def _identity(folder: Path) -> tuple[bytes, dict[str, bytes]]:
    """A digest of the files of a model folder, and the profiles in it."""
    digest, profiles = hashlib.sha256(), {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name.startswith("profile."):
            if not path.name.endswith(".learnt.json"):
                tiny = sum(file.stat().st_size for file in path.parent.glob("*.onnx")) < TINY_BYTES
                profiles[name] = _smooth(path.read_bytes()) if tiny else path.read_bytes()
        elif path.is_file():
            digest.update(f"{name} {hash_file(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.digest(), profiles


def _be_patient(app: App, hang_floor: float) -> None:
    state = app.engine.state
    state.settings = dataclasses.replace(state.settings, hang_floor=hang_floor)

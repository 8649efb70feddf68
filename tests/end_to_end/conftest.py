"""Servers of the zoo's tiny models, and `slacktide serve` as a program.

The servers here are whole ones: real sockets, real worker processes. Fixtures hand out a `House`,
which at the end of every test checks that nothing of it is left behind: no request in flight, no
byte of shared memory, no client counted, and an engine that does not contradict itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.served import House, housed
from tests.end_to_end.zoo import Zoo


class Program:
    """`slacktide serve`, and what it says."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "slacktide", "serve", *words]
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.said: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "ready: " in line or "not ready (" in line:
                self._ready.set()
        self._ready.set()

    def port(self, name: str) -> int:
        """A port it listens on; waits until it is ready."""
        assert self._ready.wait(60)
        match = re.search(rf"(?:ready: |listening on ).*\b{name} [^ ]*:(\d+)", "".join(self.said))
        assert match is not None, "".join(self.said)
        return int(match[1])

    def end(self) -> int:
        """Its exit code."""
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def family(self) -> list[int]:
        """Its children and grandchildren."""
        children = [self.process.pid]
        for pid in children:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            children += map(int, listed.split())
        return children[1:]


@pytest.fixture
def program() -> Iterator[Any]:
    started: list[Program] = []

    def start(*words: Any) -> Program:
        started.append(Program(*map(str, words)))
        return started[-1]

    yield start
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.process.kill()
        server.process.wait(60)
        for pipe in (server.process.stderr, server.process.stdout):
            server._reader.join(60)
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The server that most tests share. Nothing may be loaded, unloaded or broken in it."""
    zoo = Zoo(tmp_path_factory.mktemp("common") / "repository")
    zoo.matmul()
    zoo.matmul("picky", settings="inputs: {x: {finite: true}}\nlimits: {rows: 2}\nmax_batch: 8\n")
    zoo.text()
    zoo.kept()
    zoo.total()
    zoo.pair()
    zoo.gather()
    zoo.spin(settings="max_batch: 8\n")
    zoo.slow(settings="max_batch: 1\n")
    # A deadline that it cannot meet is far from over when a busy machine gets to the request.
    zoo.slow("slower", turns=120_000, settings="max_batch: 1\n")
    with housed(zoo) as house:
        yield house


@pytest.fixture
def house(common: House) -> Iterator[House]:
    """The common server; nothing of a test's may be left in it."""
    yield common
    common.settle()


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    """An empty repository of the test's own."""
    return Zoo(tmp_path / "repository")


@dataclass(frozen=True)
class Token:
    """A bearer token in a file, and as clients send it."""

    file: Path
    header: dict[str, str]
    grpc: dict[str, str]


@pytest.fixture
def token(tmp_path: Path) -> Token:
    """A token of the test's own; its file is for its owner alone."""
    value, file = "correct-horse-battery-staple", tmp_path / "secret"
    file.write_text(value + "\n")
    file.chmod(0o600)
    return Token(file, {"Authorization": f"Bearer {value}"}, {"authorization": f"Bearer {value}"})


@pytest.fixture(scope="session")
def zoo_at() -> type[Zoo]:
    """`zoo_at(folder)`: an empty repository there."""
    return Zoo


@pytest.fixture(scope="session")
def serve() -> Callable[..., contextlib.AbstractContextManager[House]]:
    """`serve(zoo, **settings)`: a server of the test's own, for a `with` statement."""
    return housed

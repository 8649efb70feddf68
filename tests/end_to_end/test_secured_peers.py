"""Peers with tokens and certificates, as `slacktide serve` runs them."""

from __future__ import annotations

import datetime
import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.peers.test_dialler import TOKEN, Authority, free_port, token_file

from slacktide.frontends.common.security import TlsFiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NAME = "peers.lan"
INFER = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    "parameters": {"timeout": 60_000_000, "report_timing": True},
}


class Machine:
    """A server with TLS, and what its clients ask of it."""

    def __init__(self, served: Any, authority: Path) -> None:
        self._served, self._trusts = served, ssl.create_default_context(cafile=str(authority))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._served.port('grpc')}"

    def fetch(self, path: str, body: bytes | None = None) -> Any:
        url = f"https://127.0.0.1:{self._served.port('http')}{path}"
        with urllib.request.urlopen(url, body, timeout=60, context=self._trusts) as answer:
            return json.load(answer)

    def links(self) -> set[str]:
        return {peer["machine"] for peer in self.status()["peers"] if peer["state"] == "up"}

    def status(self) -> Any:
        return self.fetch("/v2/slacktide/peers")

    def answering(self) -> str:
        """The machine that answers a request."""
        answer = self.fetch("/v2/models/slow/infer", json.dumps(INFER).encode())
        return answer["parameters"]["machine"]

    def hour(self) -> int:
        """The hour of its first line in the log."""
        return int(self._served.said[0][:2])

    def logged(self, words: str) -> bool:
        return words in "".join(self._served.said)


@pytest.fixture
def start(program: Any, zoo: Any) -> Callable[..., Machine]:
    """Starts a server; it dials `peers`."""
    zoo.slow(settings="max_batch: 1\nexecutor: profiled\n")

    def started(
        name: str,
        files: TlsFiles,
        *words: Any,
        peers: str = "",
        grpc: int = 0,
    ) -> Machine:
        listed = ("--peers", peers) if peers else ()
        served = program(
            *(zoo.root, "--machine", name, "--profile-budget", "200ms", *listed, *words),
            *("--http-port", 0, "--grpc-port", grpc, "--metrics-port", 0),
            *("--tls-cert", files.certificate, "--tls-key", files.key, "--peer-ca", files.peer_ca),
        )
        return Machine(served, files.peer_ca)

    return started


def until(condition: Callable[[], object]) -> None:
    """Wait; pytest's timeout ends what never comes."""
    while not condition():
        time.sleep(0.05)


def shift_clock(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Shift the time of day of programs that are started from now on."""
    (folder / "sitecustomize.py").write_text(
        "import time\n"
        f"now, now_ns = time.time, time.time_ns\ntime.time = lambda: now() + {seconds}\n"
        f"time.time_ns = lambda: now_ns() + {seconds} * 10**9\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")


def test_machines_with_a_token_answer_for_each_other_whatever_their_clocks_say(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("all", "127.0.0.1")
    token = ("--peer-token-file", token_file(tmp_path, TOKEN))
    a = start("a", files, *token)
    b = start("b", files, *token, peers=a.address)
    (tmp_path / "wrong").mkdir()
    wrong = token_file(tmp_path / "wrong", "another-horse-battery")
    stranger = start("d", files, "--peer-token-file", wrong, peers=a.address)
    shift_clock(tmp_path, monkeypatch, 3600)
    c = start("c", files, *token, peers=f"{a.address},{b.address}")
    for machine, peers in ((a, {"b", "c"}), (b, {"a", "c"}), (c, {"a", "b"})):
        until(lambda machine=machine, peers=peers: machine.links() == peers)
    for machine in (a, c):
        answering: set[str] = set()
        with ThreadPoolExecutor(24) as pool:
            while answering < {"a", "b", "c"}:  # each burst may spread over two
                answers = pool.map(lambda _, machine=machine: machine.answering(), range(24))
                answering |= set(answers)
        assert answering == {"a", "b", "c"}
    assert (c.hour() - a.hour()) % 24 in (1, 2)
    for machine in (stranger, a):
        until(lambda machine=machine: "the bearer token is not valid" in str(machine.status()))
    assert not stranger.links()


def test_machines_with_certificates_and_one_that_is_rotated(start: Any, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    authority, successor = Authority(tmp_path), Authority(tmp_path / "next")
    names = ("--peer-names", NAME)
    of_a = authority.issue("a", "127.0.0.1", NAME)
    both = tmp_path / "both.pem"
    both.write_bytes(authority.pem.read_bytes() + successor.pem.read_bytes())
    of_a = TlsFiles(of_a.certificate, of_a.key, None, both)
    later = f"127.0.0.1:{free_port()}"
    a = start("a", of_a, *names, peers=later)
    b = start("b", authority.issue("b", "127.0.0.1", NAME), *names, peers=a.address)
    until(lambda: a.links() == {"b"})

    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = authority.issue("expired", "127.0.0.1", NAME, not_after=past)
    # Its own port has the certificate too, so its status cannot be asked for.
    old = start("old", expired, *names, peers=a.address)
    until(lambda: old.logged("it may refuse this server's certificate"))
    nameless = start("nameless", authority.issue("n", "127.0.0.1"), *names, peers=a.address)
    until(lambda: nameless.logged("a certificate that names a peer"))

    # The certificates of another authority are refused, until this server has one of it.
    of_c = successor.issue("c", "127.0.0.1", NAME)
    c = start("c", of_c, *names, grpc=int(later.rpartition(":")[2]))
    until(lambda: a.logged("it may refuse this server's certificate"))
    assert not c.links()
    issued = successor.issue("a", "127.0.0.1", NAME)
    of_a.key.write_bytes(issued.key.read_bytes())
    of_a.certificate.write_bytes(issued.certificate.read_bytes())
    until(lambda: c.links() == {"a"})
    until(lambda: a.links() == {"b", "c"})
    assert not a.logged("has left")
    assert not b.logged("has left")
    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(lambda _: a.answering(), range(24))) == {"a", "b", "c"}

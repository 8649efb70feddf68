"""A server works whatever it inherits, ends well whenever it is asked to, and logs in one form
whatever its workers write."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CLOSED = [*(pytest.param((fd,), marks=pytest.mark.slow) for fd in (0, 2)), (0, 1, 2)]


@contextlib.contextmanager
def started(
    repository: Path, *words: str, inherit: Callable[[], object] = int
) -> Iterator[subprocess.Popen[str]]:
    """`slacktide serve`, whose process does `inherit` before it becomes that."""
    command = [sys.executable, "-m", "slacktide", "serve", str(repository), *words]
    for port in ("http", "grpc", "metrics"):
        command += [f"--{port}-port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=inherit
    ) as process:
        try:
            yield process
        except AssertionError:
            process.kill()
            print(process.communicate()[1])  # what the server logged, for the report
            raise
        finally:
            process.kill()


def listening(process: subprocess.Popen[str]) -> bool:
    """Whether it has a TCP port open."""
    mine = set()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(os.readlink(entry))
    lines = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
    return any(f"socket:[{line.split()[9]}]" in mine for line in lines if line.split()[3] == "0A")


def workers(process: subprocess.Popen[str]) -> list[int]:
    def children(pid: int) -> list[int]:
        with contextlib.suppress(OSError):
            return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return []

    return [worker for child in children(process.pid) for worker in children(child)]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end, f"it never came to pass that {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("fds", CLOSED)
def test_it_serves_and_ends_well_with_closed_standard_streams(zoo: Any, fds: Any) -> None:
    zoo.matmul()

    def inherit() -> None:
        for fd in fds:
            os.close(fd)

    with started(zoo.root, inherit=inherit) as process:
        until(lambda: listening(process) and workers(process), "it serves")
        process.terminate()
        assert process.wait(60) == 0


def test_standard_error_that_is_the_script_of_a_shell_is_none() -> None:
    command = [sys.executable, "-m", "slacktide", "profile", "/no/model"]
    with Path(os.devnull).open() as script:
        process = subprocess.run(command, stderr=script, timeout=60, check=False)
    assert process.returncode == 2


def test_it_works_with_the_signals_and_the_umask_of_others(zoo: Any) -> None:
    zoo.matmul("one")
    zoo.matmul("two")

    def inherit() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
        os.umask(0o777)

    with started(zoo.root, inherit=inherit) as process:
        assert process.stderr is not None
        # Before it is ready, its workers may be those that measure, which nothing replaces.
        assert any("ready: " in line for line in process.stderr)
        until(lambda: len(workers(process)) == 2, "it serves")
        killed, spared = workers(process)
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in (now := workers(process)) and len(now) == 2, "it is replaced")
        assert spared in workers(process)
        process.terminate()
        assert process.wait(60) == 0
        assert "Traceback" not in process.communicate()[1]


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("it begins", signal.SIGINT),
        ("it imports", signal.SIGTERM),
        ("it listens", signal.SIGINT),
    ],
)
def test_a_signal_before_it_is_ready_ends_it_without_a_traceback(
    zoo: Any, when: str, number: int
) -> None:
    zoo.matmul()
    with started(zoo.root) as process:
        proc = Path(f"/proc/{process.pid}")

        def handles_sigterm() -> bool:
            caught = re.search(r"^SigCgt:\s(\w+)", (proc / "status").read_text(), re.M)
            return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

        if when == "it begins":
            until(handles_sigterm, when)
        elif when == "it imports":
            until(lambda: "uvloop" in (proc / "maps").read_text(), when)
        else:
            until(lambda: listening(process), when)
        process.send_signal(number)
        assert process.wait(60) == 0
        assert "Traceback" not in process.communicate()[1]


CODE = r"""
import os, signal, sys, threading, warnings

def interrupt(number, frame):
    raise KeyboardInterrupt

def act(x):
    what = int(x[0])
    if what == 1:
        print("printed")
        os.write(2, b"one line\nand half a")
    if what == 2:
        warnings.warn("beware")
        threading.Thread(target=lambda: 1 / 0).start()
    if what == 3:
        sys.exit("enough")
    if what == 4:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # while it waits for the next batch
    return x
"""
ACT = """
max_batch: 1
function:
  name: act
  takes: {x: {datatype: FP32, shape: [-1]}}
  gives: {x: {datatype: FP32, shape: [-1]}}
"""


def test_each_line_that_workers_write_is_a_json_object(
    zoo: Any, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acting.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (zoo.root / "act").mkdir(parents=True)
    (zoo.root / "act" / "slacktide.yaml").write_text(ACT)
    server = program(
        zoo.root, "--http-port", 0, "--grpc-port", 0, "--metrics-port", 0, "--log-format", "json",
        "--glue", "act=acting:act",
    )  # fmt: skip
    port = server.port("http")

    def ask(what: int) -> Any:
        from tests.end_to_end.calls import call_of, infer

        return infer(port, "act", call_of({"x": ("FP32", [1], [what])}))

    assert ask(1).status == 200
    assert ask(2).status == 200
    stopped = ask(3)
    assert (stopped.status, "SystemExit: enough" in stopped.error) == (500, True)
    assert ask(4).status == 200
    until(lambda: any("is lost" in line for line in server.said), "its worker ends")
    until(lambda: ask(0).status == 200, "another one serves")
    server.process.terminate()
    assert server.end() == 0
    lines = [json.loads(line) for line in server.said]
    text = "\n".join(line["message"] for line in lines)
    for part in ("printed", "half a", "beware", "ZeroDivisionError", "KeyboardInterrupt"):
        assert part in text, text

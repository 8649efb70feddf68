"""Processes of servers and supervisors on this machine: start, watch, ask and end them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slacktide.cluster.folder_lock import LockHolder, holder_of

LOCK = "lock"
LOG_BYTES = 1 << 20
"""Size from which the next start begins a new log. One earlier log is kept."""

# Forked twice, because Ray ends the children of a process with it, but not grandchildren.
_DETACHED = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'

_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d|\{")
_ANSWER_S = 2.0
_CLOSE_S = 20.0
"""Time that a server gets to end, besides its own limits of draining."""


def spawn(arguments: list[str], log_file: Path) -> int:
    """Start a program in a session of its own, with its output appended to a log. Returns its
    process id. `SLACKTIDE_` variables, which would override its command line, are left out."""
    with contextlib.suppress(FileNotFoundError):
        if log_file.stat().st_size >= LOG_BYTES:
            log_file.replace(log_file.with_name(f"{log_file.name}.1"))
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("SLACKTIDE_")
    }
    command = ["sh", "-c", _DETACHED, "sh", str(log_file), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, start_new_session=True, env=environment
    )
    return int(done.stdout)


@contextmanager
def opened_process(pid: int) -> Iterator[tuple[int, asyncio.Future[None]]]:
    """Open a process: a descriptor for signals, and a future that is done when it has ended. Raises
    ProcessLookupError."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(pid)

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(pidfd, end)
    try:
        yield pidfd, ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def stop_server(folder: Path, pid: int = 0) -> None:
    """Let the server of a state folder answer its requests and end; return when it has ended.
    `pid`: its process, if known."""
    holder = holder_of(folder / LOCK)
    drain_s = 0.0 if holder is None else float(holder.document.get("drain_s", 0.0))
    if pid := pid or (0 if holder is None else holder.pid):
        await end_process(pid, drain_s)


async def end_process(pid: int, drain_s: float) -> None:
    """Let a server or supervisor end, and return when it has ended. It is killed if it takes longer
    than `drain_s` and a margin, unless `drain_s` is infinite."""
    with contextlib.suppress(ProcessLookupError), opened_process(pid) as (pidfd, ended):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)  # it may be stopped
        patience = None if drain_s == math.inf else drain_s + _CLOSE_S
        await asyncio.wait((ended,), timeout=patience)
        if not ended.done():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await ended


async def ask(holder: LockHolder, port: str, path: str, token: str = "") -> tuple[int, str] | None:
    """Send a GET to the `http` or `metrics` port of a running server. Returns status and text; None
    if it does not answer."""
    document = holder.document
    number = document.get("ports", {}).get(port)
    if not number:
        return None
    context = None
    if document.get("tls"):  # on this machine, to a process whose id is known
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    request += f"Authorization: Bearer {token}\r\n\r\n" if token else "\r\n"
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(document["host"], number, ssl=context)
            try:
                writer.write(request.encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return int(head.split()[1]), body.decode(errors="replace")
            finally:
                writer.close()
    except ssl.SSLError:
        return 200, ""  # it listens, and wants a client certificate
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped a process. A debugger's stop does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def last_error(path: Path) -> str:
    """Return the last line of a log if it is an error that ended the program; else nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines() or [""]
    except OSError:
        return ""
    return "" if _LOG_LINE.match(lines[-1]) else lines[-1]

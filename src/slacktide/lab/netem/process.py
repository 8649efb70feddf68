"""Runs the proxy in a separate process, so that it and the load generator do not delay each other.

The two exchange lines of JSON. The process reads its link and target, then `{"origin": …}`, and
ends when its input ends. It writes `{"port": …}`, and at its end the counters; the last line of its
stderr says why it failed. If the parent dies, the input ends too, so no other signal is needed.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import asdict

import orjson

from slacktide.lab.netem.proxy import Carried, LinkProxy
from slacktide.lab.workloads import BandwidthTrace, ConstantLink, TraceLink

_MAIN = "from slacktide.lab.netem.process import main; main()"
_TIME_LIMIT = 20.0
"""Seconds that a process may take to start, or to end."""
_LONGEST_LINE = 1 << 26


class LinkError(Exception):
    """The proxy did not start; the text says why."""


class LinkProcess:
    """A `LinkProxy` in another process. Use it as an async context manager. After the block,
    `carried` has its counters, or `failure` says why there are none."""

    def __init__(
        self, link: ConstantLink | TraceLink, host: str, to_port: int, *, shared: bool = False
    ) -> None:
        if isinstance(link, ConstantLink):
            link = TraceLink(BandwidthTrace([0.0], [link.bandwidth]), link.rtt)
        trace = link.trace
        self._setup = {
            "host": host,
            "to_port": to_port,
            "shared": shared,
            "trace": (trace.starts.tolist(), trace.rates.tolist(), trace.period),
            "rtt": link.rtt,
            "offset": link.offset,
        }
        self.carried: Carried | None = None
        self.failure = ""

    async def __aenter__(self) -> LinkProcess:
        """Raises LinkError if the process does not start."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MAIN),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C reaches only this process, which closes its input
        )
        self._tell(self._setup)
        try:
            async with asyncio.timeout(_TIME_LIMIT):
                message = await self._hear()
        except TimeoutError:
            message = {"error": f"it did not start within {_TIME_LIMIT:g} s"}
        except asyncio.CancelledError:
            await self._end()
            raise
        port = message.get("port")
        if not isinstance(port, int):
            await self._end()
            raise LinkError(f"no proxy: {message.get('error') or self.failure}")
        self.port = port
        return self

    def begin(self, origin: float) -> None:
        """Set the link's time 0 to this instant of `time.monotonic()`."""
        self._tell({"origin": origin})

    def warnings(self, lateness_limit: float) -> tuple[str, ...]:
        """Return warnings for readers of a report; `lateness_limit` in seconds."""
        counters = self.carried
        if counters is None:
            return (f"the link failed: {self.failure}",)
        warnings = []
        if counters.lateness_p99 > lateness_limit:
            warnings.append(
                f"the emulated link was late: {counters.lateness_p99 * 1e3:.1f} ms at p99 "
                f"(threshold: {lateness_limit * 1e3:g} ms), so the network looks slower than it "
                "is; give it a core of its own or less traffic"
            )
        if counters.unreachable:
            warnings.append(
                f"the server did not accept {counters.unreachable} connections of the link"
            )
        return tuple(warnings)

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def _end(self) -> None:
        """End the process, and read its counters."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_TIME_LIMIT):
                out, complaint = await self._process.communicate()
        except BaseException as error:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if not isinstance(error, TimeoutError):
                raise
            self.failure = f"it did not end within {_TIME_LIMIT:g} s"
            return
        last = out.strip().splitlines()[-1:]
        if self._process.returncode == 0 and last:
            self.carried = Carried(**orjson.loads(last[0]))
        else:
            lines = complaint.decode(errors="replace").strip().splitlines() or ["no output"]
            self.failure = f"it ended with status {self._process.returncode}: {lines[-1]}"

    def _tell(self, document: object) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(orjson.dumps(document) + b"\n")

    async def _hear(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        document = orjson.loads(line) if line else {}
        return document if isinstance(document, dict) else {}


def main() -> None:
    """Main function of the process: carry connections until its input ends."""
    import uvloop

    setup = orjson.loads(sys.stdin.buffer.readline())
    link = TraceLink(BandwidthTrace(*setup["trace"]), setup["rtt"], setup["offset"])
    uvloop.run(_carry(LinkProxy(link, setup["host"], setup["to_port"], shared=setup["shared"])))


async def _carry(proxy: LinkProxy) -> None:
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with proxy:
        _say({"port": proxy.port})
        while line := await reader.readline():
            proxy.begin(orjson.loads(line)["origin"])
    _say(asdict(proxy.carried()))


def _say(document: object) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()

"""A network namespace behind a link of the kernel's own: tbf, the token bucket of tc(8).

Needs root, and `ip` and `tc` of iproute2; `reason_not` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

SEGMENT, FRAME = 1448, 1514
"""Bytes of payload in a full TCP segment, and of the Ethernet frame around it, which tbf counts."""
_BURST = 4 * FRAME
_HOST, _GUEST = "10.203.77.1", "10.203.77.2"


def reason_not() -> str:
    """Why there can be no namespaces here; empty: there can be."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (iproute2)"
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return f"no namespaces: {probe.stderr.strip()}" if probe.returncode else ""


class Namespace:
    """A namespace whose way to this one carries so many bytes of payload a second. Use it as a
    context manager. Raises OSError, with tc's own words, if the kernel cannot."""

    host, guest = _HOST, _GUEST
    """Addresses of this side and of the other."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self.name = f"slacktide-{os.getpid()}"
        self._ours, self._theirs = f"st{os.getpid()}h", f"st{os.getpid()}g"

    def __enter__(self) -> Self:
        inside = ("ip", "-n", self.name)
        try:
            _do("ip", "netns", "add", self.name)
            _do("ip", "link", "add", self._ours, "type", "veth", "peer", "name", self._theirs)
            _do("ip", "link", "set", self._theirs, "netns", self.name)
            _do("ip", "address", "add", f"{_HOST}/30", "dev", self._ours)
            _do("ip", "link", "set", self._ours, "up")
            _do(*inside, "address", "add", f"{_GUEST}/30", "dev", self._theirs)
            _do(*inside, "link", "set", self._theirs, "up")
            self._shape("add", self._bandwidth)
        except OSError:
            self.__exit__(None, None, None)
            raise
        return self

    def change(self, bandwidth: float) -> None:
        """From now on so many bytes of payload a second."""
        self._shape("change", bandwidth)

    def sever(self) -> None:
        """Stop all packets, as a pulled cable does."""
        _do("ip", "-n", self.name, "link", "set", self._theirs, "down")

    def restore(self) -> None:
        """Let packets pass again."""
        _do("ip", "-n", self.name, "link", "set", self._theirs, "up")

    def command(self, *words: str) -> list[str]:
        """The command, inside."""
        return ["ip", "netns", "exec", self.name, *words]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The pair of interfaces goes with the namespace that one of them is in.
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)

    def _shape(self, verb: str, bandwidth: float) -> None:
        bits = round(bandwidth * 8 * FRAME / SEGMENT)
        _do(
            *("tc", "-n", self.name, "qdisc", verb, "dev", self._theirs, "root", "tbf"),
            *("rate", f"{bits}bit", "burst", str(_BURST), "latency", "2s"),
        )


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")

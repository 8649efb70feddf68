"""Messages between two servers, apart from requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.domain.read_only import read_only

PROTOCOL = 1
"""Version of the messages. Servers of different versions do not forward to each other."""


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The first message of each side. It is repeated when the models have changed."""

    protocol: int
    release: str
    machine: str
    """The server's name, unique among its peers."""
    models: Mapping[str, str]
    """Digest of each loaded model version, by `model:version`. Equal digests mean that either
    server may answer for the other."""
    instance: str = ""
    """Random text made at the server's start, which tells the server from others of the same name.
    The dialler fills it in."""
    http_address: str = ""
    grpc_address: str = ""
    """`host:port` at which clients reach the server; empty: clients are not sent to it."""
    tls: bool = False
    """Whether the ports at these addresses use TLS."""


@read_only
class ModelLoad:
    """When a server could start the next request of a model. Times are seconds from the report."""

    model: str
    wait_s: float
    """Until a lane is free for a request of one row that arrives now; infinite: never."""
    alone_s: float
    """Time that a batch of one row takes."""
    row_s: float
    """Delay of the next request by each waiting row: the time per row at the best batch size,
    divided by the number of lanes."""


@read_only
class LoadReport:
    """The loads of a server. It is sent with each answer, and otherwise when they have changed, at
    most ten times a second."""

    loads: tuple[ModelLoad, ...]
    """Only the models whose load has changed since the last report on the same link."""
    received: int
    """Number of calls received on this link when the report was made. `wait_s` does not include
    later calls."""

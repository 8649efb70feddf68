"""`ClusterFile`: the servers of a cluster, from one YAML file, and the commands that run them.

    repository: models
    servers:
      - name: a
      - name: b
        port: 8100
        serve: {scheduler: edf}

Every server gets the addresses of the others as its peers.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from slacktide.cluster.supervisor import ServerCommand
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.paths import NAME_RULE, is_name, read_bounded

MAX_BYTES = 1 << 18
LOOPBACK = "127.0.0.1"
FIRST_PORT = 8000
PORTS = {"http-port": 0, "grpc-port": 1, "metrics-port": 2}
"""Flags of ports, and their distance from a server's `port`."""
STEP = 10
"""Distance between the ports of two servers of one pool on a machine."""
POOL_STEP = 100
_SET_BY = {
    **dict.fromkeys(PORTS, "port"), "host": "host", "cores": "cores", "machine": "name",
    "peers": "servers", "peer-token-file": "peer_token_file", "state-dir": "the cluster",
}  # fmt: skip
"""Flags that the file sets in another way."""

PATHS = {"token-file", "tls-cert", "tls-key", "tls-client-ca", "peer-ca", "record"}
"""Flags of files, relative to the cluster's file."""

Flags = dict[str, Any]
Address = tuple[str, int]
"""Host and HTTP port."""


def _absolute(path: str, info: ValidationInfo) -> str:
    return path if info.context is None else str((info.context / path).resolve())


def _flags(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        value = {str(flag).replace("_", "-"): setting for flag, setting in value.items()}
        for flag in _SET_BY.keys() & value.keys():
            raise ValueError(f"{flag}: set by {_SET_BY[flag]!r} in this file")
        for flag in PATHS & value.keys():
            value[flag] = _absolute(str(value[flag]), info)
    return value


def _name(value: Any) -> Any:
    if isinstance(value, str) and not is_name(value):
        raise ValueError(f"expected {NAME_RULE}")
    return value


def _bounds(value: Any) -> Any:
    return {"min": value, "max": value} if isinstance(value, int) else value


FilePath = Annotated[str, AfterValidator(_absolute)]
ServeFlags = Annotated[Flags, BeforeValidator(_flags)]
Port = Annotated[int, Field(ge=1, le=65535 - POOL_STEP)]
Name = Annotated[str, BeforeValidator(_name)]
Count = Annotated[int, Field(ge=1, le=256)]


class ClusterSection(BaseModel):
    """A section of the file. Supervisors read it without importing what models need."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ServerCount(ClusterSection):
    """Minimum and maximum number of servers in a pool."""

    min: Count = 1
    max: Count = 1

    @model_validator(mode="after")
    def _ordered(self) -> ServerCount:
        if self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self


class ClusterServer(ClusterSection):
    """A server, or a pool of equal servers."""

    name: Name
    repository: FilePath | None = None
    """Models that it serves. Default: the file's `repository`."""
    host: str | None = None
    """Address that it listens on, and where its peers reach it. Default: loopback; on Ray, the
    node's address if peers have a token."""
    port: Port | None = None
    """HTTP port; gRPC and metrics have the next two. Default: free ports from 8000."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """Cores for its models; on Ray, the CPUs that it reserves."""
    replicas: Annotated[ServerCount, BeforeValidator(_bounds)] = ServerCount()
    """Number of servers. Ray Serve scales between the bounds; `--local` runs the fewest."""
    per_node: Annotated[int, Field(ge=1, le=8)] = 1
    """Maximum number of these servers on one Ray node."""
    target: Annotated[float, Field(gt=0, le=2)] = 0.8
    """`slacktide_offered_share` above which Ray Serve starts another server."""
    serve: ServeFlags = Field(default={})
    """Further flags of `slacktide serve`, without dashes."""


class ClusterFile(ClusterSection):
    """The file of a cluster."""

    name: Name = "cluster"
    """Its name on this machine. Default: the name of the file."""
    repository: FilePath | None = None
    """Models that all serve, relative to the file."""
    peer_token_file: FilePath | None = None
    """File with the token that peers send each other, relative to the file."""
    serve: ServeFlags = Field(default={})
    """Flags of `slacktide serve` for every server, without dashes."""
    servers: Annotated[tuple[ClusterServer, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _consistent(self) -> ClusterFile:
        names = [name for name, _, _ in self.members()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"servers: two are named {name!r}")
        named = self.peer_token_file is not None or "peer-names" in self.serve
        if len(names) > 1 and "token-file" in self.serve and not named:
            raise ValueError("serve.token-file: servers then need 'peer_token_file' to link")
        for server in self.servers:
            if server.repository is None and self.repository is None:
                raise ValueError(f"servers: {server.name} has no repository, nor has the file")
        return self

    def members(self) -> Iterator[tuple[str, ClusterServer, int | None]]:
        """Yield the name, section and stated port of each server that always runs."""
        for server in self.servers:
            count = server.replicas.min
            for number in range(count):
                name = server.name if count == 1 else f"{server.name}-{number + 1}"
                yield name, server, None if server.port is None else server.port + STEP * number

    def flags(self, server: ClusterServer, *, name: str, address: Address) -> Flags:
        """Return all flags of a server apart from its peers and its state folder."""
        host, port = address
        flags: Flags = {**self.serve, **server.serve, "host": host, "machine": name}
        flags |= {flag: port + distance for flag, distance in PORTS.items()}
        if server.cores is not None:
            flags["cores"] = server.cores
        if self.peer_token_file is not None:
            flags["peer-token-file"] = self.peer_token_file
        return flags

    def command(
        self,
        server: ClusterServer,
        folder: Path,
        *,
        name: str,
        address: Address,
        addresses: Collection[Address],
        processors: tuple[int, ...] = (),
    ) -> ServerCommand:
        """Write the flags of a server into its state folder, and return its command. `addresses`:
        of all servers. Raises OSError."""
        flags = self.flags(server, name=name, address=address)
        text = json.dumps(flags, indent=2, sort_keys=True)  # JSON is YAML
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / f"serve-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
        config.write_text(text)  # earlier files stay, for servers not yet replaced
        command = (sys.executable, "-P", "-m", "slacktide", "serve")
        repository = str(server.repository or self.repository)
        state = ("--config", str(config), "--state-dir", str(folder), "--take-over")
        peers = tuple(
            f"{host}:{port + PORTS['grpc-port']}"
            for host, port in dict.fromkeys(addresses)
            if (host, port) != address
        )
        return ServerCommand(name, (*command, repository, *state), folder, peers, processors)


def read_cluster_file(path: Path) -> ClusterFile:
    """Read the file at `path`, with paths in it made absolute. Raises RepositoryError naming each
    wrong key."""
    from slacktide.models.repository.settings_file import parse_document, validation_problems

    where = str(path)
    document = parse_document(read_bounded(path, MAX_BYTES, where=where), where=where)
    try:
        return ClusterFile.model_validate({"name": path.stem, **document}, context=path.parent)
    except ValidationError as error:
        problems = (problem.problem for problem in validation_problems(error, ClusterFile))
        raise SettingsError(where, *problems) from None

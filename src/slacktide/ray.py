"""Ray Serve keeps pools of servers running on the nodes of a Ray cluster (extra `ray`).

    slacktide cluster up cluster.yaml
    serve run slacktide.ray:app file=cluster.yaml      # or SLACKTIDE_CLUSTER=cluster.yaml

Each replica has one server kept running on its node, by a supervisor that Ray does not know; and
requests never pass through Ray. So servers outlive replicas, node processes and the head, and are
restarted without them. Other deployments may call a pool:

    handle = serve.get_app_handle("shop")
    outputs = await handle.infer.remote("residual", {"image": image}, timeout_s=0.1)
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray import serve
from ray.serve.handle import DeploymentHandle

from slacktide._datatypes import BY_NAME
from slacktide.cluster.file import (
    FIRST_PORT,
    LOOPBACK,
    POOL_STEP,
    STEP,
    Address,
    ClusterFile,
    ClusterServer,
    read_cluster_file,
)
from slacktide.cluster.folder_lock import FolderLock, holder_of
from slacktide.cluster.local import (
    ClusterPlan,
    clusters_folder,
    end_earlier_supervisor,
    keep_supervised,
    server_states,
    stop_all,
    supervisor_of,
    write_plan,
)
from slacktide.cluster.processes import ask
from slacktide.cluster.supervisor import ServerCommand, ServerPhase

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("slacktide.cluster")

SHARE = "offered_share"
_PLACE_LOCK = "replica"
"""Lock of a place's replica, in the folder that also has the supervisor's lock."""
_NICENESS = "RAY_worker_niceness"
"""Environment variable with the number that Ray adds to the niceness of its workers; 15 by
default."""
_LOOK_S = 0.05
_STOP_S = 120.0
"""Time that Ray Serve gives a replica to let its server drain."""
_METRICS_S = 0.25


class ServerPool:
    """A Serve deployment: one server for each replica."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, document: str, index: int, *pools: DeploymentHandle
    ) -> None:
        """`document`: the cluster's file as JSON; `index`: of the pool in the file. The other
        `pools` only have to run. Raises RuntimeError if the node has no place left, or the server
        does not start or take over."""
        _undo_niceness()
        cluster = ClusterFile.model_validate_json(document)
        self._lock, self._folder, self._command = _claim_place(cluster, index)
        self._session: aiohttp.ClientSession | None = None
        token_file = {**cluster.serve, **cluster.servers[index].serve}.get("token-file")
        self._token = "" if token_file is None else Path(str(token_file)).read_text().strip()
        plan = ClusterPlan(Path(), servers=(self._command,))  # the file may be on another node
        write_plan(self._folder, plan)
        end_earlier_supervisor(self._folder)
        self._keeping = asyncio.create_task(keep_supervised(self._folder))
        try:
            while not self._follows(plan) or self._state()["state"] != ServerPhase.READY:
                if self._follows(plan):
                    self.check_health()
                await asyncio.sleep(_LOOK_S)
        except RuntimeError:
            await self._stop()
            raise
        if halted := self._supervisor_document().get("update"):
            self._keeping.cancel()  # the server that runs goes on
            self._lock.release()
            raise RuntimeError(f"{self._command.name}: {halted}")

    def _follows(self, plan: ClusterPlan) -> bool:
        """Whether the supervisor has carried out a plan."""
        return self._supervisor_document().get("revision") == plan.revision

    def _supervisor_document(self) -> Mapping[str, Any]:
        supervisor = supervisor_of(self._folder)
        return {} if supervisor is None else supervisor.document

    def _state(self) -> dict[str, Any]:
        return next(server_states(self._folder))

    def check_health(self) -> None:
        """Raise RuntimeError if the server cannot be started."""
        state = self._state()
        if state["state"] == ServerPhase.PAUSED:
            raise RuntimeError(f"{self._command.name}: {state['message']}")
        if self._keeping.done():
            raise RuntimeError(
                f"{self._command.name}: no supervisor"
            ) from self._keeping.exception()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the server's offered share, 0 while it does not answer."""
        holder = self._command.holder()
        answer = await ask(holder, "metrics", "/metrics", self._token) if holder else None
        lines = [] if answer is None else answer[1].splitlines()
        shares = (line.split()[-1] for line in lines if line.startswith(f"slacktide_{SHARE}"))
        return {SHARE: float(next(shares, 0.0))}

    def server(self) -> dict[str, Any]:
        """Return the name, process and addresses of the server."""
        holder = self._command.holder()
        document = {} if holder is None else dict(holder.document)
        return {**document, "name": self._command.name, "phase": self._state()["state"]}

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        timeout_s: float | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Answer a request through this replica's server. `inputs`: tensors by name, without
        strings; `timeout_s`: time until its deadline, by default the model's. Returns the outputs
        by name. Raises RuntimeError with the server's message if it does not serve the request."""
        stated = {} if timeout_s is None else {"timeout": round(timeout_s * 1e6)}
        head, body = _encode(inputs, {**(parameters or {}), **stated})
        holder = self._command.holder()
        if holder is None or "ports" not in holder.document:
            raise RuntimeError("the server is starting")
        if self._session is None:
            import aiohttp  # would be a tenth of the time that a replica takes to start

            self._session = aiohttp.ClientSession()
        scheme = "https" if holder.document.get("tls") else "http"
        address = f"{scheme}://{holder.document['host']}:{holder.document['ports']['http']}"
        headers = {"Inference-Header-Content-Length": str(len(head))}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with self._session.post(
            f"{address}/v2/models/{model}/infer", data=head + body, headers=headers, ssl=False
        ) as response:
            answer = await response.read()
            if response.status != 200:
                raise RuntimeError(answer.decode(errors="replace"))
            length = int(response.headers.get("Inference-Header-Content-Length", len(answer)))
        return _decode(answer, length)

    async def __del__(self) -> None:
        """Stop the server, and servers that dead replicas have left in other places of the pool on
        this node. Ray Serve awaits this if it stops a replica on purpose; otherwise this does not
        run, and the server goes on."""
        await self._stop()
        for place in self._folder.parent.glob(f"{self._folder.name.rpartition('-')[0]}-*"):
            if holder_of(place / _PLACE_LOCK) is None:
                await stop_all(place)

    async def _stop(self) -> None:
        self._keeping.cancel()
        await stop_all(self._folder)
        self._lock.release()


class SharePolicy:
    """Ray Serve's autoscaling policy: as many servers as bring their offered share to `target`.
    They answer for each other, so their shares add up."""

    def __init__(self, target: float) -> None:
        self.target = target

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        series = (context.raw_metrics or {}).get(SHARE, {})
        offered = sum(points[-1].value for points in series.values() if points)
        if len(series) < context.current_num_replicas:  # a server has not reported yet
            return max(context.target_num_replicas, math.ceil(offered / self.target)), {}
        return math.ceil(offered / self.target), {}


def application(cluster: ClusterFile) -> serve.Application:
    """Return the Serve application of a cluster. Its handle is the first pool's."""
    document = cluster.model_dump_json()
    pools: list[Any] = []
    for index, server in reversed(list(enumerate(cluster.servers))):
        policy = {
            "policy_function": SharePolicy,
            "policy_kwargs": {"target": server.target},
        }
        deployment = serve.deployment(
            ServerPool,
            name=server.name,
            ray_actor_options={"num_cpus": server.cores or 1},
            max_replicas_per_node=server.per_node,
            autoscaling_config={
                "min_replicas": server.replicas.min,
                "max_replicas": server.replicas.max,
                "metrics_interval_s": _METRICS_S,
                "look_back_period_s": 4 * _METRICS_S,
                "upscale_delay_s": 0.0,  # the share is a mean already
                "downscale_delay_s": 60.0,
                "policy": policy,
            },
            health_check_period_s=1.0,
            health_check_timeout_s=10.0,
            graceful_shutdown_timeout_s=_STOP_S,
        )
        pools.insert(0, deployment.bind(document, index, *(pools if index == 0 else ())))
    app: serve.Application = pools[0]
    return app


def app(arguments: dict[str, str]) -> serve.Application:
    """Build the application for `serve run slacktide.ray:app file=FILE`. Raises ValueError."""
    file = arguments.get("file") or os.environ.get("SLACKTIDE_CLUSTER")
    if not file:
        raise ValueError("state the cluster's file: file=FILE, or SLACKTIDE_CLUSTER=FILE")
    return application(read_cluster_file(Path(file)))


def deploy(cluster: ClusterFile) -> None:
    """Run a cluster on the Ray cluster that this process is connected to, without Serve's proxies.
    Returns once all pools run. Raises RuntimeError."""
    serve.start(proxy_location="Disabled")
    serve.run(application(cluster), name=cluster.name, route_prefix=None)


def connect() -> None:
    """Connect to the Ray cluster that this machine belongs to. Raises ConnectionError."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray.init("auto", log_to_driver=False, logging_level=logging.WARNING, ignore_reinit_error=True)


def delete(name: str) -> None:
    """Stop a cluster's servers, after they have answered their requests."""
    serve.delete(name)


def states(name: str) -> list[dict[str, Any]]:
    """Return the state of each pool of a cluster, as Ray Serve has it."""
    applications = serve.status().applications
    deployments = applications[name].deployments if name in applications else {}
    return [
        {
            "name": pool,
            "state": deployment.status.value.lower(),
            "replicas": ", ".join(f"{n} {s.lower()}" for s, n in deployment.replica_states.items()),
            "message": deployment.message,
        }
        for pool, deployment in deployments.items()
    ]


def _undo_niceness() -> None:
    """Give this thread, whose priority the server inherits, the priority of other programs."""
    try:
        os.nice(-int(os.environ.get(_NICENESS, 15)))
    except PermissionError:
        log.warning("the server has a low priority, as Ray's workers: set %s=0", _NICENESS)


def _claim_place(cluster: ClusterFile, index: int) -> tuple[FolderLock, Path, ServerCommand]:
    """Take a place of this node that no other replica has, if possible one with a running server.
    Returns its lock, the supervisor's folder, and the server. Raises RuntimeError if there is
    none."""
    server, nodes = cluster.servers[index], [node for node in ray.nodes() if node["Alive"]]
    addresses = [
        address
        for node in nodes
        for place, pool in enumerate(cluster.servers)
        for address in _addresses(cluster, pool, place, node["NodeManagerAddress"])
    ]
    places: list[tuple[Path, ServerCommand]] = []
    for address in _addresses(cluster, server, index, ray.util.get_node_ip_address()):
        name = f"{server.name}-{address[0]}-{len(places)}"
        folder = clusters_folder() / cluster.name / name
        command = cluster.command(
            server, folder / "servers" / name, name=name, address=address, addresses=addresses
        )
        places.append((folder, command))
    for folder, command in sorted(places, key=lambda place: place[1].holder() is None):
        lock = FolderLock(folder / _PLACE_LOCK)
        try:
            lock.acquire()
        except OSError:
            continue
        return lock, folder, command
    raise RuntimeError(f"{server.name}: all {server.per_node} places of this node are taken")


def _addresses(cluster: ClusterFile, server: ClusterServer, index: int, node: str) -> list[Address]:
    """Return the addresses of a pool's places on a node: beyond loopback only with credentials."""
    flags = {**cluster.serve, **server.serve}
    is_guarded = cluster.peer_token_file is not None or "tls-client-ca" in flags
    host = server.host or (node if is_guarded else LOOPBACK)
    first = server.port or FIRST_PORT + POOL_STEP * index
    return [(host, first + STEP * number) for number in range(server.per_node)]


def _encode(
    inputs: Mapping[str, NDArray[Any]], parameters: Mapping[str, Any]
) -> tuple[bytes, bytes]:
    """Return JSON and binary part of a request in the Open Inference Protocol."""
    names = {datatype.dtype: name for name, datatype in reversed(BY_NAME.items())}
    tensors, parts = [], []
    for name, array in inputs.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if little.dtype not in names or little.dtype.hasobject:
            raise RuntimeError(f"{name}: expected numbers, got {array.dtype}")
        tensor = {"name": name, "shape": array.shape, "datatype": names[little.dtype]}
        tensors.append({**tensor, "parameters": {"binary_data_size": little.nbytes}})
        parts.append(little.tobytes())
    document = {"inputs": tensors, "parameters": {**parameters, "binary_data_output": True}}
    return json.dumps(document).encode(), b"".join(parts)


def _decode(answer: bytes, length: int) -> dict[str, NDArray[Any]]:
    """Return the outputs of an answer whose JSON has `length` bytes."""
    outputs = {}
    for output in json.loads(answer[:length])["outputs"]:
        dtype, shape = BY_NAME[output["datatype"]].dtype, output["shape"]
        size = output["parameters"]["binary_data_size"]
        array = np.frombuffer(answer, dtype, size // dtype.itemsize, length)
        outputs[output["name"]] = array.reshape(shape)
        length += size
    return outputs

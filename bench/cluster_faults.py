"""Three servers under load while something dies, hangs, is cut off or is replaced.

Clients at each server offer .3, 1.1 and .5 of what one can do, so the second forwards to the first,
to which things happen. What counts is what happens to everything else. Rows:

- `kill`, `stopped`: servers of `cluster up --local`; `kill -9` of a server, the supervisor and a
  worker, a server that is stopped (SIGSTOP).
- `link`, `namespace`: its links to peers cut for 3 and 15 s by proxies, and its network gone (needs
  root).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import servers
from bench.cluster_fault_load import (
    ClientLog,
    FaultRun,
    LocalCluster,
    Seen,
    loaded,
    noticed_s,
    process_age_s,
    until,
)
from bench.cluster_servers import (
    CAPACITY,
    Member,
    load_spec,
    make_repository,
    started,
    wait_linked,
)
from bench.machine import CACHE
from bench.measurement import Options, Result
from bench.namespaces import Namespace, reason_not
from bench.processes import tree
from slacktide.lab.load.spec import LoadSpec
from slacktide.lab.netem.proxy import LinkProxy
from slacktide.lab.workloads import BandwidthTrace, TraceLink

SHARES = (0.3, 1.1, 0.5)
"""Load at each server, in its capacity."""
RESET_S, SILENCE_S = 0.1, 1.5
RESTING = 8 / 0.1
"""Requests per second of the model with workers."""
REST_S = 5.0
"""Time between a return and the next fault."""


def run(options: Options) -> Result:
    """Every row, or those of `--rows`."""
    result = Result("cluster_faults")
    for name, fault, limits in LOCAL:
        if options.wants(name):
            _local(result, options, name, fault, limits)
    for name, row in (
        ("kill -9 of a worker", _workers),
        ("link", _links),
        ("namespace", _namespace),
    ):
        if options.wants(name):
            row(result, options)
    return result


def _specs(
    members: Sequence[Member], model: str = "slow", capacity: float = CAPACITY
) -> list[LoadSpec]:
    return [
        load_spec(member, model, share * capacity, 900.0, number)
        for number, (member, share) in enumerate(zip(members, SHARES, strict=True))
    ]


# ── servers of `cluster up --local` ──────────────────────────────────────────────────────────


def _local(
    result: Result,
    options: Options,
    name: str,
    fault: Callable[[LocalCluster], Seen],
    limits: tuple[float, float],
) -> None:
    """Play a fault. `limits`: until peers notice it, until the server is back."""
    count = 10 if name.startswith("kill") else 3
    faults = FaultRun()
    with LocalCluster(make_repository("cluster_faults")) as cluster:
        members = cluster.members()
        wait_linked(members)
        script = partial(_repeat, 1 if options.quick else count, fault, cluster)
        faults.add(*asyncio.run(loaded(_specs(members), script)))
    noticed, back = limits
    faults.show(result, name, noticed=noticed, back=back)


def _repeat(count: int, fault: Callable[[LocalCluster], Seen], cluster: LocalCluster) -> list[Seen]:
    faults = []
    for _ in range(count):
        faults.append(fault(cluster))
        wait_linked(cluster.members())
        time.sleep(REST_S)
    return faults


def _kill_server(cluster: LocalCluster) -> Seen:
    victim, *peers = cluster.members()
    begin = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    noticed = noticed_s(begin, peers)
    return _returned(cluster, victim, begin, noticed)


def _returned(cluster: LocalCluster, victim: Member, begin: float, noticed: float) -> Seen:
    successor = cluster.successor(victim)
    return Seen(begin, noticed, time.monotonic() - begin, process_age_s(successor.pid))


def _stop_server(cluster: LocalCluster) -> Seen:
    victim, *peers = cluster.members()
    begin = time.monotonic()
    os.kill(victim.pid, signal.SIGSTOP)
    noticed = noticed_s(begin, peers)
    return _returned(cluster, victim, begin, noticed)


def _kill_supervisor(cluster: LocalCluster) -> Seen:
    """Raises RuntimeError unless `cluster up` adopts every server."""
    holder, pids = cluster.supervisor(), [member.pid for member in cluster.members()]
    assert holder is not None
    begin = time.monotonic()
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: cluster.supervisor() is None)
    cluster.up()
    if [member.pid for member in cluster.members()] != pids:
        raise RuntimeError("a server was not adopted")
    return Seen(begin, back_s=time.monotonic() - begin)


LOCAL = (
    ("kill -9 of a server", _kill_server, (RESET_S, 2.0)),
    ("kill -9 of the supervisor", _kill_supervisor, (math.inf, 5.0)),
    ("SIGSTOP of a server", _stop_server, (SILENCE_S, 2.0)),
)


def _workers(result: Result, options: Options) -> None:
    """A model that has workers, and takes .1 s in them."""
    root = CACHE / "cluster_faults" / "models" / "rest"
    shutil.rmtree(root.parent.parent, ignore_errors=True)
    root.mkdir(parents=True)
    tensor = "{datatype: FP32, shape: [-1, 2]}"
    function = f"function: {{name: rest, takes: {{x: {tensor}}}, gives: {{y: {tensor}}}}}\n"
    (root / "slacktide.yaml").write_text(f"{function}max_batch: 8\nslo: 500ms\n")
    faults = FaultRun()
    with LocalCluster(root.parent, glue=["rest=bench.resting:rest"]) as cluster:
        members = cluster.members()
        wait_linked(members)
        # In turn: a fifth crash within a minute would make the model unavailable.
        fault = partial(_kill_worker, victims=itertools.cycle(range(3)))
        script = partial(_repeat, 2 if options.quick else 10, fault, cluster)
        faults.add(*asyncio.run(loaded(_specs(members, "rest", RESTING), script)))
    faults.show(result, "kill -9 of a worker", back=2.0)


def _kill_worker(cluster: LocalCluster, victims: Iterator[int]) -> Seen:
    member = cluster.members()[next(victims)]
    worker = tree(member.pid)[-1]
    begin = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    until(lambda: tree(member.pid)[-1] not in (worker, member.pid) and member.is_ready())
    return Seen(begin, back_s=time.monotonic() - begin)


# ── links ────────────────────────────────────────────────────────────────────────────────────


def _links(result: Result, options: Options) -> None:
    for seconds in (3.0,) if options.quick else (3.0, 15.0):
        faults, count = FaultRun(), 1 if options.quick else 3
        repository = make_repository("cluster_faults")
        faults.add(*asyncio.run(_behind_proxies(repository, seconds, count)))
        faults.show(result, f"link cut for {seconds:g} s", noticed=SILENCE_S, back=seconds + 5.0)


def _namespace(result: Result, options: Options) -> None:
    if why := reason_not():
        result.remarks.append(f"no network namespaces: {why}")
        return
    faults, repository = FaultRun(), make_repository("cluster_faults")
    with Namespace(1e9) as space:
        faults.add(*asyncio.run(_in_namespace(repository, space, 1 if options.quick else 3)))
    faults.show(result, "namespace gone for 15 s", noticed=SILENCE_S, back=20.0)


async def _behind_proxies(
    repository: Path, seconds: float, count: int
) -> tuple[list[ClientLog], list[Seen]]:
    fast, ports = TraceLink(BandwidthTrace([0.0], [1e9]), 0.0), servers.free_ports(9)
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(LinkProxy(fast, "127.0.0.1", port))
            for port in ports[4:6]
        ]
        for link in links:
            link.begin(time.monotonic())
        proxies = [f"127.0.0.1:{link.port}" for link in links]

        def peers(number: int, grpc: Sequence[int]) -> list[str]:
            return proxies if number == 0 else [f"127.0.0.1:{grpc[3 - number]}"]

        def change(verb: Callable[[LinkProxy], None]) -> None:
            for link in links:
                loop.call_soon_threadsafe(verb, link)

        cut, mend = partial(change, LinkProxy.cut), partial(change, LinkProxy.mend)
        block = started(repository, 3, peers, ports=ports)
        members = await asyncio.to_thread(block.__enter__)
        try:
            await asyncio.to_thread(wait_linked, members)
            script = partial(_cut_links, members, seconds, count, cut, mend)
            return await loaded(_specs(members), script)
        finally:
            mend()
            await asyncio.to_thread(block.__exit__, None, None, None)


async def _in_namespace(
    repository: Path, space: Namespace, count: int
) -> tuple[list[ClientLog], list[Seen]]:
    token = CACHE / "cluster_faults" / "token"
    token.write_text("peers-of-one-benchmark")
    token.chmod(0o600)

    def peers(number: int, grpc: Sequence[int]) -> list[str]:
        return [f"{space.host}:{grpc[peer]}" for peer in (1, 2) if peer != number]

    places: list[tuple[str, list[str]]] = [(space.host, [])] * 3
    places[0] = space.guest, space.command()
    flags = ("--peer-token-file", str(token))
    with started(repository, 3, peers, flags=flags, places=places) as members:
        await asyncio.to_thread(wait_linked, members)
        script = partial(_cut_links, members, 15.0, count, space.sever, space.restore)
        clients, faults = await loaded(_specs(members), script)
        return clients, [replace(fault, start_s=0.0) for fault in faults]  # its clients are cut off


def _cut_links(
    members: Sequence[Member],
    seconds: float,
    count: int,
    cut: Callable[[], None],
    mend: Callable[[], None],
) -> list[Seen]:
    cuts = []
    for _ in range(count):
        begin = time.monotonic()
        cut()
        noticed = noticed_s(begin, members[1:])
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        mend()
        wait_linked(members)
        cuts.append(Seen(begin, noticed, time.monotonic() - begin))
        time.sleep(REST_S)
    return cuts

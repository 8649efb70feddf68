"""Servers of `cluster up --local` that lose their supervisor, and that are replaced.

- `unsupervised`: requests of a tiny model, with the supervisor and without, in turn.
- `update`: `cluster up` with a changed flag; stock gRPC clients that have all addresses, and HTTP
  clients that have one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from bench import servers
from bench.clients import latencies
from bench.cluster_fault_load import LocalCluster, Seen, loaded
from bench.cluster_servers import CAPACITY, Member, load_spec, make_repository, wait_linked
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import oip_body
from slacktide.lab.load.spec import LoadSpec, Target, Transport

REST_S = 5.0
"""Time between two updates."""


def run(options: Options) -> Result:
    """Every row, or those of `--rows`."""
    result = Result("cluster_updates")
    if options.wants("unsupervised"):
        _unsupervised(result, options)
    if options.wants("update"):
        _update(result, options)
    return result


def _unsupervised(result: Result, options: Options) -> None:
    """Some 3 s of requests with a supervisor, 6 s without, in turn."""
    body = oip_body({"x": np.ones((1, 2), np.float32)})
    rates, tails = [], []
    with LocalCluster(make_repository("cluster_faults")) as cluster:
        member = cluster.members()[0]
        serving = servers.Serving("slacktide", member.port, "/v2/models/{model}/infer")
        path = serving.path_of("tiny")
        count = round(3.0 / float(latencies(serving, path, body, count=1000).mean()))
        for _ in range(2 if options.quick else 10):
            supervised = latencies(serving, path, body, count=count)
            holder = cluster.supervisor()
            assert holder is not None
            os.kill(holder.pid, signal.SIGKILL)
            alone = latencies(serving, path, body, count=2 * count)
            cluster.up()
            rates.append(float(supervised.mean() / alone.mean()))
            tails.append(float(np.percentile(alone, 99) / np.percentile(supervised, 99)))
    name = "supervisor killed"
    result.figures += [
        Figure(
            f"{name}: requests/s ÷ before", median(rates), "×", at_least(0.98), "", tuple(rates)
        ),
        Figure(f"{name}: p99 ÷ before", median(tails), "×", at_most(1.02), "", tuple(tails)),
    ]


def _update(result: Result, options: Options) -> None:
    repository, count = make_repository("cluster_faults"), 1 if options.quick else 3
    for name, spec_of in (
        ("stock gRPC clients", _grpc_spec),
        ("HTTP clients of one server", _http_spec),
    ):
        with LocalCluster(repository) as cluster:
            members = cluster.members()
            wait_linked(members)
            specs = [spec_of(members, number) for number in range(3)]
            clients, updates = asyncio.run(loaded(specs, partial(_updates, cluster, count)))
        due = np.concatenate([client.due for client in clients])
        in_time = np.concatenate([client.endings == 0 for client in clients])
        updating = np.zeros(due.size, bool)
        for update in updates:
            updating |= (due >= update.at) & (due < update.at + update.back_s)
        fall = 100 * float(in_time[~updating].mean() - in_time[updating].mean())
        lost = sum(int(client.lost().sum()) for client in clients)
        result.figures += [
            Figure(f"update, {name}: lost", lost, f"of {due.size}", at_most(0)),
            Figure(f"update, {name}: fewer in time", fall, "points", at_most(2.0)),
        ]


def _updates(cluster: LocalCluster, count: int) -> list[Seen]:
    updates = []
    for number in range(count):
        begin = time.monotonic()
        cluster.up(**{"max-sessions": 10 + number})
        updates.append(Seen(begin, back_s=time.monotonic() - begin))
        time.sleep(REST_S)
    return updates


def _http_spec(members: Sequence[Member], number: int) -> LoadSpec:
    return load_spec(members[number], "slow", 0.5 * CAPACITY, 900.0, number)


def _grpc_spec(members: Sequence[Member], number: int) -> LoadSpec:
    """A client that begins with one server and knows the others, by grpcio's own means."""
    ports = [member.grpc_port for member in (*members[number:], *members[:number])]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports[:-1])
    target = Target(
        Transport.GRPC, "127.0.0.1", ports[0], via=(f"ipv4:{addresses},127.0.0.1", ports[-1])
    )
    return replace(_http_spec(members, number), target=target, connections=4)

"""What serving costs beside the model: a tiny MLP, everything of a server on one core.

    requests/s   32 outstanding, driven by h2load from another core. Ours and MLServer speak the
                 Open Inference Protocol (ours with binary tensors; MLServer reads only JSON over
                 HTTP), mosec and the plain server raw bodies, which is less to parse.
    JSON         the same with JSON, beside MLServer.
    CPU          of the server for one of these requests with the model in its process, as binary
                 and as JSON: a figure without a peer, which `bench compare` sees.
    gRPC         the same over gRPC, beside an empty grpc.aio handler: what the stack itself costs;
                 with 32 connections, and with one of 32 streams.
    hop          one request at a time with 150 KB to a model that does nothing: p50 through a
                 worker process less p50 inside the server's own.
    p50          one request at a time to the MLP, beside the plain server without batching.

All servers are up at once and idle but one; contenders take turns within each round, and ratios are
formed within a round before the median is taken. `--beside FOLDER` serves another commit or build
of ours in turn with this one, in the same rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench import models, servers
from bench.clients import Rate, grpc_body, h2load, latencies
from bench.measurement import Figure, Goal, Options, Result, Table, at_least, at_most, format_number
from bench.models import Body
from bench.peers import PeerMissingError
from bench.processes import cpu_seconds, tree
from bench.servers import Serving
from slacktide.lab.examples import example

MAX_BATCH = 64


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is driven, and with what."""

    name: str
    serving: Serving
    model: str
    body: Body
    grpc: bool = False
    streams: int = 1
    """On each connection."""


def run(options: Options) -> Result:
    """Five rounds (three short ones when quick)."""
    rounds, seconds, count = (3, 1.0, 200) if options.quick else (5, 5.0, 2_000)
    result = Result("overhead")
    mlp = models.requests("mlp", 1)[0]
    hop = models.oip_body({"values": np.zeros((1, models.HOP_FLOATS), np.float32)})
    with contextlib.ExitStack() as stack:
        ours = {
            folder or "ours": stack.enter_context(servers.slacktide(repository, source=folder))
            for folder, repository in _repositories(options.beside).items()
        }
        beside = _peers(stack, options, result)
        for row, contenders in _contenders(ours, beside, mlp).items():
            if options.wants(row.lower()):
                _throughput(contenders, rounds, seconds, result, row)
        mine = ours["ours"]
        if options.wants("cpu"):
            bodies = {"binary": models.oip_body(mlp), "JSON": models.json_body(mlp)}
            _cpu(mine, bodies, rounds, 10 * count, result)
        if options.wants("hop"):
            pairs = {
                "worker process": lambda: _p50_ms(mine, "hop", hop, count),
                "in process": lambda: _p50_ms(mine, "hop_in_process", hop, count),
            }
            _difference(
                pairs, rounds, result, "hop of 150 KB to a worker, added p50", "µs", 1e3, 150.0
            )
        if options.wants("p50") and "plain" in beside:
            oip, raw = models.oip_body(mlp), _raw(mlp)
            pairs = {
                "ours": lambda: _p50_ms(mine, "mlp", oip, count),
                "plain": lambda: _p50_ms(beside["plain"], "mlp", raw, count),
            }
            _difference(
                pairs, rounds, result, "p50 over a plain server without batching", "ms", 1.0, 0.5
            )
    return result


_GOALS: Mapping[tuple[str, str], Mapping[str, Goal | None]] = {
    ("ours", "mlserver"): {"HTTP": at_least(5.0), "JSON": None, "gRPC": None},
    ("ours", "mosec"): {"HTTP": at_least(0.5)},
    ("ours", "plain"): {"HTTP": None},
    ("ours, in process", "mosec"): {"HTTP": None},
    ("ours", "empty aio handler"): {"gRPC": at_least(1.0), "gRPC, one connection": at_least(1.0)},
}


def _repositories(beside: Sequence[str]) -> dict[str, Path]:
    """The MLP and a model that does nothing, each in a worker and in the server's process. Each
    server has a folder of its own: what it has learnt of its models lies there."""
    mlp = example("mlp").onnx()
    settings = f"max_batch: {MAX_BATCH}\n"
    inside = settings + "executor: in_process\n"
    held = {
        "mlp": (mlp, settings),
        "mlp_in_process": (mlp, inside),
        "hop": (models.hop_model(), "max_batch: 4\n"),
        "hop_in_process": (models.hop_model(), "max_batch: 4\nexecutor: in_process\n"),
    }
    return {
        folder: models.variant_repository(f"overhead{number or ''}", held)
        for number, folder in enumerate(("", *beside))
    }


def _peers(stack: contextlib.ExitStack, options: Options, result: Result) -> dict[str, Serving]:
    """Whichever of the other servers can be had, by name."""
    file = models.model_file("mlp")
    starts: dict[str, Callable[[], contextlib.AbstractContextManager[Serving]]] = {
        "empty aio handler": servers.empty_grpc
    }
    if options.peers:
        starts |= {
            "mosec": lambda: servers.mosec("mlp", file),
            "mlserver": lambda: servers.mlserver("mlp", file),
            "plain": lambda: servers.plain({"mlp": file}),
        }
    up = {}
    for name, start in starts.items():
        try:
            up[name] = stack.enter_context(start())
        except (PeerMissingError, servers.ServerFailedError) as error:
            result.remarks.append(str(error))
    return up


def _contenders(
    ours: Mapping[str, Serving], beside: Mapping[str, Serving], mlp: models.Tensors
) -> dict[str, list[Contender]]:
    """By row."""
    oip, raw, text = models.oip_body(mlp), _raw(mlp), models.json_body(mlp)
    message = grpc_body(models.grpc_message("mlp", mlp))
    inside = grpc_body(models.grpc_message("mlp_in_process", mlp))
    mine = ours["ours"]
    rows = {
        "HTTP": [
            *(Contender(name, serving, "mlp", oip) for name, serving in ours.items()),
            Contender("ours, in process", mine, "mlp_in_process", oip),
        ],
        "JSON": [Contender(name, serving, "mlp", text) for name, serving in ours.items()],
    }
    for name, row, body in (
        ("mosec", "HTTP", raw),
        ("plain", "HTTP", raw),
        ("mlserver", "HTTP", text),
        ("mlserver", "JSON", text),
    ):
        if name in beside:
            rows[row].append(Contender(name, beside[name], "mlp", body))
    for row, streams in (("gRPC", 1), ("gRPC, one connection", 32)):
        servings = dict(ours)
        servings |= {
            name: beside[name] for name in ("empty aio handler", "mlserver") if name in beside
        }
        rows[row] = [
            Contender(name, serving, "mlp", message, True, streams)
            for name, serving in servings.items()
        ]
    rows["gRPC"].insert(1, Contender("ours, in process", mine, "mlp_in_process", inside, grpc=True))
    return rows


def _throughput(
    contenders: list[Contender],
    rounds: int,
    seconds: float,
    result: Result,
    row: str,
) -> None:
    rates_by_name: dict[str, list[Rate]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            rate = h2load(
                contender.serving,
                contender.model,
                contender.body,
                seconds=seconds,
                streams=contender.streams,
                grpc=contender.grpc,
            )
            rates_by_name[contender.name].append(rate)
    rates = {name: [rate.per_second for rate in runs] for name, runs in rates_by_name.items()}
    rows = []
    for name, measured in rates_by_name.items():
        failed = sum(rate.failed for rate in measured)
        figures = (median(rates[name]), min(rates[name]), max(rates[name]))
        rows.append((name, *map(format_number, figures), str(failed)))
    columns = ("server", "median", "least", "most", "without a 2xx")
    result.tables.append(
        Table(f"tiny MLP over {row}, 32 outstanding: requests/s", columns, tuple(rows))
    )
    result.details[row] = rates
    first, *others = (name for name in rates if name != "ours, in process")
    pairs = {
        (name, other): goals.get(row) for (name, other), goals in _GOALS.items() if row in goals
    }
    for other in others:
        pairs.setdefault((first, other), None)
        if "/" in other and "mosec" in rates:
            pairs[other, "mosec"] = None
    for (subject, other), goal in pairs.items():
        if subject in rates and other in rates:
            ratios = [a / b for a, b in zip(rates[subject], rates[other], strict=True)]
            name = f"{row}: {subject} ÷ {other}"
            result.figures.append(Figure(name, median(ratios), "×", goal, samples=tuple(ratios)))


def _cpu(
    ours: Serving, bodies: Mapping[str, Body], rounds: int, count: int, result: Result
) -> None:
    """CPU time of our server for a request over HTTP, its model in its own process."""
    costs: dict[str, list[float]] = {kind: [] for kind in bodies}
    for turn in range(rounds + 1):
        for kind, body in bodies.items():
            pids = tree(ours.pid)
            before = cpu_seconds(pids)
            h2load(ours, "mlp_in_process", body, count=count)
            if turn:  # the first warms up
                costs[kind].append((cpu_seconds(pids) - before) / count * 1e6)
    for kind, samples in costs.items():
        name = f"HTTP, in process: CPU of a {kind} request"
        result.figures.append(Figure(name, median(samples), "µs", samples=tuple(samples)))


def _difference(
    pairs: Mapping[str, Callable[[], float]],
    rounds: int,
    result: Result,
    name: str,
    unit: str,
    scale: float,
    limit: float,
) -> None:
    """The first less the second, milliseconds times `scale`, as the median over rounds."""
    times: dict[str, list[float]] = {who: [] for who in pairs}
    for _ in range(rounds):
        for who, measure in pairs.items():
            times[who].append(measure())
    first, other = times.values()
    differences = [(a - b) * scale for a, b in zip(first, other, strict=True)]
    note = ", ".join(f"{who} {median(samples):.3f} ms" for who, samples in times.items())
    result.figures.append(
        Figure(name, median(differences), unit, at_most(limit), note, tuple(differences))
    )


def _p50_ms(serving: Serving, model: str, body: Body, count: int) -> float:
    latencies(serving, serving.path_of(model), body, count=max(10, count // 10))
    return float(np.median(latencies(serving, serving.path_of(model), body, count=count))) * 1e3


def _raw(tensors: models.Tensors) -> Body:
    return Body(models.raw_body(tensors), {"Content-Type": "application/octet-stream"})

"""One pipeline under load, live and in the simulation: how many frames are whole and in time.

Each share of capacity has a server of its own, which records. First comes a calm spell, then one
at the very load, which teaches how long batches take where a loop shares their core and how long
outputs are read; neither is scored. Then, after a pause, the frames that count, from whose arrivals
and what was seen on them the simulator predicts what became of them (docs/twin.md), and says with
hindsight: once from the times of before, once from those of the same moments. What only the first
of them differs by is a machine that has changed in between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import servers
from bench.clients import read_answer, request_bytes, settle
from bench.frame_log import FrameLog
from bench.machine import Theft
from bench.measurement import Figure, Result, Table, at_least, at_most
from bench.models import Tensors, oip_body
from bench.offer import Offered, offer
from bench.servers import Serving
from slacktide.lab.load.report import StreamReport
from slacktide.lab.load.report.provenance import gather
from slacktide.lab.simulation import Prediction, predict
from slacktide.lab.workloads import Fixed, Poisson
from slacktide.recording import Call, Recording

SHARES = (0.7, 1.0, 1.3)
"""Of capacity."""
SEED = 1
DRAWS = 5
_OUTSTANDING = 8
_CALM_S, _CALM_SHARE = 4.0, 0.3
_COLUMNS = (
    "× capacity",
    "frames",
    "complete: live",
    "simulated",
    "difference",
    "with hindsight",
    "difference",
    "in time, partial too: live",
    "simulated",
    "difference",
    "stolen",
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered to a pipeline."""

    pipeline: str
    frames: tuple[Tensors, ...]
    capacity: float
    """Frames a second."""
    deadline: float
    """Seconds."""
    duration: float


@contextlib.contextmanager
def served(root: Path, *flags: str) -> Iterator[tuple[Serving, FrameLog]]:
    """A server with a pen (bench/pipeline_server.py)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.log"
        path.touch()
        os.environ["BENCH_FRAME_LOG"] = str(path)
        with servers.slacktide(root, *flags, module="bench.pipeline_server") as serving:
            yield serving, FrameLog(path)


def measured_capacity(
    serving: Serving, pipeline: str, frames: tuple[Tensors, ...], seconds: float
) -> float:
    """Frames a second with eight always under way."""
    path = serving.path_of(pipeline)
    requests = [request_bytes(serving, path, oip_body(frame)) for frame in frames]
    end = time.perf_counter() + seconds

    def ask(number: int) -> int:
        done = 0
        with socket.create_connection(("127.0.0.1", serving.port)) as connection:
            while time.perf_counter() < end:
                connection.sendall(requests[(number + done) % len(requests)])
                read_answer(connection, serving.name)
                done += 1
        return done

    with ThreadPoolExecutor(_OUTSTANDING) as pool:
        return sum(pool.map(ask, range(_OUTSTANDING))) / seconds


def sweep(root: Path, load: Load, result: Result) -> None:
    """All shares of capacity, and a table of live beside simulated."""
    rows = [_at(root, share, load, result) for share in SHARES]
    result.tables.append(Table("Live and simulated, in points", _COLUMNS, tuple(rows)))


def _at(root: Path, share: float, load: Load, result: Result) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.rec"
        with served(root, "--record", str(path), "--record-limit", "4GiB") as (serving, log):
            _offer(serving, load, _CALM_SHARE, _CALM_S, SEED + 2000)
            _offer(serving, load, share, load.duration / 2, SEED + 1000)
            body = oip_body(load.frames[0])
            settle(serving, serving.path_of(load.pipeline), body, within=load.deadline / 2)
            log()
            split, theft = time.monotonic(), Theft()
            before = _outcomes(serving, load.pipeline)
            goodput = _offer(serving, load, share, load.duration, SEED)
            batches, ended, stolen = log(), _outcomes(serving, load.pipeline), theft.share()
        prediction, again = (_predicted(path, split, hindsight) for hindsight in (False, True))
    counts = {name: ended[name] - before.get(name, 0) for name in ended}
    complete = counts.get("on_time", 0) / max(1, sum(counts.values()))
    others = ", ".join(f"{n} {name}" for name, n in counts.items() if n and name != "on_time")
    rate = share * load.capacity
    note = f"{rate:.0f}/s, deadline {1e3 * load.deadline:.0f} ms; {others}"
    name, figures = f"at {share:g} × capacity", result.figures
    goal = at_least(0.99) if share == SHARES[0] else None
    figures.append(Figure(f"{name}: complete in time", complete, "", goal, note))
    figures.append(Figure(f"{name}: in time by the client, partial too", goodput))
    wasted = batches.wasted_s / max(1e-9, batches.spent_s)
    goal = at_most(0.01) if share == SHARES[-1] else None
    figures.append(Figure(f"{name}: batch seconds of frames that had ended", wasted, "", goal))
    live = prediction.recorded.total
    whole = [_complete(live)]
    title = f"{name}: complete, simulated from live"
    for simulated, kind in ((prediction, "times of before"), (again, "times of the same moments")):
        whole.append(float(np.mean([_complete(run.total) for run in simulated.predicted])))
        points = abs(100 * (whole[-1] - whole[0]))
        figures.append(Figure(f"{title}, {kind}", points, "points", at_most(3)))
    result.details[name] = {
        "notes": prediction.notes,
        "live": live.reasons,
        "drawn": prediction.predicted[0].total.reasons,
        "with hindsight": again.predicted[0].total.reasons,
    }
    in_time = live.goodput, live.goodput + prediction.difference
    return (
        f"{share:g}",
        str(live.submitted),
        f"{whole[0]:.3f}",
        *(
            cell
            for share_complete in whole[1:]
            for cell in (f"{share_complete:.3f}", f"{100 * (share_complete - whole[0]):+.1f}")
        ),
        *(f"{portion:.3f}" for portion in in_time),
        f"{100 * prediction.difference:+.1f}",
        f"{stolen:.0%}",
    )


def _offer(serving: Serving, load: Load, share: float, duration: float, seed: int) -> float:
    """The client's goodput."""
    arrivals, deadline = Poisson(share * load.capacity), Fixed(load.deadline)
    offered = Offered(load.pipeline, arrivals, deadline, inputs=load.frames)
    offered_run = offer(serving, [offered], duration=duration, warmup=0.0, seed=seed)
    return offered_run.models[load.pipeline].goodput


def _outcomes(serving: Serving, pipeline: str) -> dict[str, int]:
    (stats,) = serving.fetch(f"/v2/models/{pipeline}/stats")["model_stats"]
    return dict(stats["outcome_stats"])


def _predicted(path: Path, split: float, hindsight: bool) -> Prediction:
    """`split`: when what counts began, by the clock of recordings."""
    recording = Recording(path)
    begin = next(line.record.now for line in recording.lines() if isinstance(line.record, Call))
    seeds = range(SEED, SEED + DRAWS)
    return predict(
        recording, seeds=seeds, provenance=gather(), after=split - begin, hindsight=hindsight
    )


def _complete(stream: StreamReport) -> float:
    return stream.reasons.get("on_time", 0) / max(1, stream.submitted)

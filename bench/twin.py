"""The twin: live servers, recorded, and what the simulator makes of their recordings.

Each run is a server of its own on one core, recorded, and a client on the other. First comes a calm
spell, in which the server can learn which requests are long, then one at the very load that is
predicted, which teaches how long batches take where a loop shares their core; neither is scored.
Then, after a pause, come the requests that count. Two questions to each recording:

    replay      does a fresh engine give the same commands, to the bit?
    predict     from who came when, and from what was known before the pause: how many points is the
                predicted goodput from the live one? Median of the runs.

Goodput is the server's own, by the engine's clock; the client's stands beside it. The classifier is
sent frames that are all alike, the text encoder short and long texts of two applications
(bench/variable_length.py). A third model may be left early: `early_exit: 1%`, its ramps learnt from
the first minute of a stream, requests with frames of later on. Where the host keeps back more of
the CPU in one part than in the other (`stolen`), what the first taught does not hold for the
second. Loads are multiples of the peak in onnxruntime alone, just measured.

Full: three runs of 3,000 requests or more. `--quick`: one of 600. `--rows` picks rows by any part
of their names, such as `text`, `early` or `2x`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import servers, variable_length
from bench.goodput import profile
from bench.machine import CACHE, Theft, cores, pin
from bench.measurement import Figure, Options, Result, Table, at_most
from bench.models import example_repository, measure_bare
from bench.offer import Offered, Run, offer, rest
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.frames import STREAM_FRAMES, video
from slacktide.lab.load.report import StreamReport
from slacktide.lab.load.report.provenance import gather
from slacktide.lab.replay import replay
from slacktide.lab.simulation import predict
from slacktide.lab.workloads import Fixed, Poisson
from slacktide.profiles import batch_sizes
from slacktide.recording import Call, Recording

LOADS = (0.8, 1.2, 2.0)
DEADLINE = {"residual": 5.0, "text": 3.0, "early": 3.0}
"""Times the run alone: its median for frames, its P99 for texts."""
FRAMES_BATCH = 8
EARLY = "chained"
"""The example that is left early."""
TAUGHT, SHOWN = 1440, 512
"""Frames that its ramps learn from, and those that requests send."""
CALM_S, CALM_LOAD = 8.0, 0.3
"""The calm spell: seconds, and its load as a multiple of the peak."""
LEARN_S, LEARN_PART = 15.0, 0.25
"""The busy one: at least so many seconds, and at least such a part of what is scored."""
DRAWS = 5
POINTS_GOAL = 2.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, how it is served and what it is sent."""

    name: str
    model: str
    repository: Path
    measure: Callable[[float], tuple[float, float]]
    """(seconds to spend) -> (peak, rows/s; seconds that deadlines are multiples of)."""
    load: Callable[[float, float], list[Offered]]
    """(rows/s, deadline) -> what is offered."""


def run(options: Options) -> Result:
    """Every model and load, run after run."""
    requests, runs = (600, 1) if options.quick else (3000, 3)
    result = Result("twin", seeds=tuple(range(1, runs + 1)))
    pin(cores().client)
    rows: list[dict[str, Any]] = []
    for subject in _subjects():
        names = {f"{subject.name} {load:g}x": load for load in LOADS}
        wanted = {name: load for name, load in names.items() if options.wants(name)}
        if not wanted:
            continue
        if subject.model == EARLY:
            _learn_ramps(subject.repository)
        profile(subject.repository / subject.model)
        for name, load in wanted.items():
            for seed in result.seeds:
                rows.append(_row(subject, name, load, requests, seed))
                print(_line(rows[-1]), file=sys.stderr, flush=True)
    _summarise(rows, result)
    return result


def _subjects() -> tuple[Subject, ...]:
    texts = variable_length.plain_repository()
    return (
        Subject("residual", "residual", example_repository(), _measured("residual"), _frames),
        Subject("text", "text", texts, _measure_texts, variable_length.load_of),
        Subject("early", EARLY, CACHE / "twin_early", _measured(EARLY), _stream),
    )


def _measured(model: str) -> Callable[[float], tuple[float, float]]:
    def measure(seconds: float) -> tuple[float, float]:
        sizes = batch_sizes(FRAMES_BATCH)
        bare = measure_bare(model, sizes, seconds)
        return max(size / bare.median(size) for size in sizes), bare.alone

    return measure


def _frames(rate: float, deadline: float) -> list[Offered]:
    return [Offered("residual", Poisson(rate), Fixed(deadline))]


def _stream(rate: float, deadline: float) -> list[Offered]:
    """Frames from the middle of the day on, each the next of a street."""
    frames = video("day", STREAM_FRAMES // 2, STREAM_FRAMES // 2 + SHOWN)
    inputs = tuple({"frames": frame[None]} for frame, _ in frames)
    return [Offered(EARLY, Poisson(rate), Fixed(deadline), inputs=inputs)]


def _learn_ramps(repository: Path) -> None:
    """As the manual advises: a file of earlier rows, before the model serves."""
    make_repository(repository, models=[EARLY])
    (repository / EARLY / "slacktide.yaml").write_text("early_exit: 1%\n")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "frames.npz"
        frames = np.stack([frame for frame, _ in video("day", 0, TAUGHT)])
        np.savez(rows, allow_pickle=False, frames=frames)
        code = "from slacktide.cli.main import main; main()"
        words = ["exits", "add", str(repository / EARLY), "--data", str(rows)]
        command = [sys.executable, "-c", code, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _measure_texts(seconds: float) -> tuple[float, float]:
    bare = variable_length.measure_bare(seconds)
    return bare.peak, bare.p99_alone


def _row(subject: Subject, name: str, load: float, requests: int, seed: int) -> dict[str, Any]:
    """One live run and what becomes of its recording."""
    peak, alone = subject.measure(2.0 if requests < 3000 else 4.0)
    # A few more, so that chance leaves no run short of them.
    rate, deadline = load * peak, DEADLINE[subject.name] * alone
    duration = 1.05 * requests / rate
    calm, offered = subject.load(CALM_LOAD * peak, deadline), subject.load(rate, deadline)
    learning = max(LEARN_S, LEARN_PART * duration)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.rec"
        flags = ("--record", str(path), "--record-limit", "4GiB")
        with servers.slacktide(subject.repository, *flags) as serving:
            theft = Theft()
            offer(serving, calm, duration=CALM_S, warmup=0.0, seed=2000 + seed)
            offer(serving, offered, duration=learning, warmup=0.0, seed=1000 + seed)
            rest(serving, [subject.model], alone)
            split = time.monotonic()
            before, theft = theft.share(), Theft()
            offered_run = offer(serving, offered, duration=duration, warmup=0.0, seed=seed)
            stolen = (before, theft.share())
        recording = Recording(path)
        replayed = replay(recording)
        begin = next(line.record.now for line in recording.lines() if isinstance(line.record, Call))
        comparison = predict(
            recording,
            seeds=range(seed, seed + DRAWS),
            provenance=gather(),
            after=split - begin,
        )
        size = path.stat().st_size
    recorded = comparison.recorded.total
    predicted = [report.total for report in comparison.predicted]
    return {
        "row": name,
        "seed": seed,
        "peak_rps": peak,
        "deadline_ms": deadline * 1e3,
        "requests": recorded.submitted,
        "client_goodput": _goodput(offered_run),
        "recorded_goodput": recorded.goodput,
        "predicted_goodput": float(np.mean([run.goodput for run in predicted])),
        "points": 100 * comparison.difference,
        "early": (_early(recorded), float(np.mean([_early(run) for run in predicted]))),
        "latency_p50_ms": _latencies(recorded, predicted, "p50"),
        "latency_p99_ms": _latencies(recorded, predicted, "p99"),
        "stolen": stolen,
        "identical": replayed.difference is None,
        "events": replayed.events,
        "bytes": size,
        "notes": list(comparison.notes),
    }


def _goodput(run: Run) -> float:
    """By the client's clock, all loads together."""
    answered = list(run.models.values())
    submitted = sum(model.submitted for model in answered)
    return sum(model.goodput * model.submitted for model in answered) / submitted


def _early(stream: StreamReport) -> float:
    """The share of the requests that left early."""
    return stream.reasons.get("early_exit", 0) / stream.submitted


def _latencies(
    recorded: StreamReport, predicted: Sequence[StreamReport], level: str
) -> tuple[float, float]:
    """A percentile of the answers' latency, live and predicted, ms; NaN without answers."""

    def ms(stream: StreamReport) -> float:
        return float("nan") if stream.latency is None else 1e3 * getattr(stream.latency, level)

    return ms(recorded), float(np.mean([ms(run) for run in predicted]))


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['row']}, run {row['seed']}: live {row['recorded_goodput']:.3f}, predicted "
        f"{row['predicted_goodput']:.3f} ({row['points']:+.1f} points), "
        f"{'identical' if row['identical'] else 'DIFFERENT'}"
    )


def _summarise(rows: Sequence[dict[str, Any]], result: Result) -> None:
    """For each model and load: the median distance; and every run in a table."""
    result.details["rows"] = list(rows)
    for name in dict.fromkeys(row["row"] for row in rows):
        points = tuple(abs(row["points"]) for row in rows if row["row"] == name)
        figure = Figure(
            f"predicted from live goodput, {name}",
            float(np.median(points)),
            "points",
            at_most(POINTS_GOAL),
            samples=points,
        )
        result.figures.append(figure)
    different = sum(not row["identical"] for row in rows)
    result.figures.append(Figure("replays that differ", different, "", at_most(0)))
    if rows:
        events = sum(row["events"] for row in rows)
        per_event = sum(row["bytes"] for row in rows) / events
        result.figures.append(Figure("recorded for each event", per_event, "bytes"))
    columns = (
        "row",
        "run",
        "requests",
        "client",
        "live",
        "predicted",
        "p50 ms",
        "p99 ms",
        "early",
        "stolen",
    )
    lines = tuple(
        (
            row["row"],
            str(row["seed"]),
            str(row["requests"]),
            f"{row['client_goodput']:.3f}",
            f"{row['recorded_goodput']:.3f}",
            f"{row['predicted_goodput']:.3f}",
            "{:.1f} / {:.1f}".format(*row["latency_p50_ms"]),
            "{:.1f} / {:.1f}".format(*row["latency_p99_ms"]),
            "{:.0%} / {:.0%}".format(*row["early"]),
            "{:.0%} / {:.0%}".format(*row["stolen"]),
        )
        for row in rows
    )
    result.tables.append(
        Table(
            "Runs; latencies live / predicted; stolen before / in the scored part", columns, lines
        )
    )

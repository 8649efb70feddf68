"""Six models of others, requests of three sizes mixed: answered in time, and predicted how well?

For each model of pinned_models.py, from a folder that states the one key it needs, all processes of
a server on one core and the client on another:

    measured    on a server of its own, each size alone: the *true time* of a request, its median as
                the client sees it, and how often a second the size is answered in a closed loop,
                which gives the time in the lane; and onnxruntime alone, for comparison
    10x, 3x     Poisson arrivals of the three sizes in equal parts, 0.7 of capacity (of that mix, by
                the closed loops); deadlines of so many times the true time of the request's size.
                The server is new: it knows the profile of the one size that its settings state
    later       as 10x, and two further sizes come in, of which the server has seen nothing

`magika` has one size, so it has no third run. Beside each run stands `slack` in virtual time on the
same arrivals, to which the times of all sizes are known (yardstick.py); the part of the true time
that is not spent in the lane is taken off its deadlines. What the server predicted, and what its
batches took, is read from its recording, replayed.

Full: 8 to 24 s a run, 7 minutes in all. `--quick`: 3 s a run. `--rows` picks models.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from bench import servers
from bench.clients import h2load, latencies, settle
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.models import npz_files, oip_body
from bench.offer import CONNECTIONS, PATIENCE, sent
from bench.pinned_models import PINNED, PinnedModel, Size, Tensors, lay_out
from bench.servers import Serving
from bench.yardstick import Arrivals, Sized, slack_by_size
from slacktide.domain import Batch, BatchFinished, Command, Request, RunBatch, Submitted
from slacktide.domain.request import Signature
from slacktide.engine import Engine
from slacktide.executors.onnx_file import DEFAULT_MAX_BATCH
from slacktide.lab.load.request_log import ENDING_OF, ENDINGS
from slacktide.lab.load.request_log import Result as Ended
from slacktide.lab.load.spec import FilePayload, LoadSpec, Stream, Target, Transport
from slacktide.lab.replay import Watcher, replay
from slacktide.lab.workloads import Fixed, Poisson
from slacktide.recording import Call, Recording

LOAD = 0.7
"""Of capacity."""
SHORTEST, LONGEST, QUICK = 8.0, 24.0, 3.0
"""Seconds that a run may take."""
WARMUP = 2.0
"""Seconds of a run that are not scored."""
BODIES = 8
"""Different requests of each size."""
IN_LOOP = 3
"""Requests under way in a closed loop."""
FIRST = 20
"""Requests of a new size that nothing is known of."""
LEARNT = 30
"""Requests of a size after which it is predicted."""
JUDGED, FEWEST = 60, 10
"""Batches after those by which the prediction is judged: at most, and at least."""
STEADY = 1.25
"""Batches of a run that take this many times as long as in the closed loop, or less by as much: the
machine was not the same, and the figures say little."""
INPUTS_SEED = 23
REFUSED = tuple(
    ENDING_OF[ending] for ending in (Ended.OVERLOADED, Ended.TIMED_OUT, Ended.UNAVAILABLE)
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One size, alone; seconds."""

    true: float
    """Median of a request alone, as its client sees it."""
    lane: float
    """Between two answers in a closed loop: what a request takes of the lane."""
    bare: tuple[float, ...]
    """Runs of onnxruntime alone."""
    two_rows: float
    """Median of such a run of two rows; of one where the model has no batch axis."""

    @property
    def on_the_way(self) -> float:
        """What of the true time passes outside of the lane."""
        return max(self.true - self.lane, 0.0)

    @property
    def in_lane(self) -> NDArray[np.float64]:
        """Seconds of the lane: as scattered as onnxruntime alone, around `lane`."""
        bare = np.asarray(self.bare)
        return np.maximum(self.lane + bare - bare.mean(), 0.5 * self.lane)


@dataclass(frozen=True, slots=True)
class Mix:
    """What one run offers."""

    name: str
    factor: float
    """Deadlines, × the true time."""
    sizes: int
    """The first so many sizes, in equal parts."""
    requests: int
    """About as many, if there is time for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One run against the server, and its yardstick. Arrays have shape (n,)."""

    name: str
    due: NDArray[np.float64]
    size: NDArray[np.int64]
    ended: NDArray[np.int64]
    """Index into the load generator's endings."""
    possible: NDArray[np.bool_]
    """On time under the yardstick."""
    lateness_p99_ms: float

    @property
    def in_time(self) -> float:
        """Share of the scored requests."""
        return float((self.ended[self._scored] == 0).mean())

    @property
    def yardstick(self) -> float:
        return float(self.possible[self._scored].mean())

    @property
    def _scored(self) -> NDArray[np.bool_]:
        return self.due >= WARMUP

    def wrongly_refused(self, new: Sequence[int]) -> int:
        """Of the first requests of each of these sizes: refused, and in time by the yardstick."""
        refusals = 0
        for size in new:
            first = np.flatnonzero(self.size == size)[:FIRST]
            refusals += int((np.isin(self.ended[first], REFUSED) & self.possible[first]).sum())
        return refusals


def run(options: Options) -> Result:
    """Every model in turn."""
    result = Result("real_models", seeds=(1,))
    pin(cores().client)
    records = []
    for model in PINNED.values():
        if options.wants(model.name):
            records.append(_measure(model, options.quick))
            print(_line(records[-1]), file=sys.stderr, flush=True)
    _summarise(records, result)
    return result


def _measure(model: PinnedModel, quick: bool) -> dict[str, Any]:
    """Everything of one model."""
    sizes = (*model.sizes, *model.later)
    inputs = [_inputs(model, size) for size in sizes]
    first_sizes = len(model.sizes)
    with tempfile.TemporaryDirectory() as folder:
        measured = _alone(model, inputs, Path(folder) / "alone", 0.4 if quick else 1.0)
        root = lay_out([model], Path(folder) / "new", stated=True)
        path = Path(folder) / "server.rec"
        with servers.slacktide(root, "--record", str(path), "--record-limit", "4GiB") as serving:
            mixes = [Mix("10x", 10.0, first_sizes, 400), Mix("3x", 3.0, first_sizes, 600)]
            mixes += [Mix("later", 10.0, len(sizes), 250)] if model.later else []
            phases = [_phase(serving, model, mix, inputs, measured, quick) for mix in mixes]
        predictions = Predictions()
        replayed = replay(Recording(path), predictions)
    new = [number for number in range(first_sizes) if sizes[number] != model.profiled]
    refused = phases[0].wrongly_refused(new)
    refused += sum(phase.wrongly_refused(range(first_sizes, len(sizes))) for phase in phases[2:])
    signatures = [_signature(model, tensors[0]) for tensors in inputs]
    return {
        "model": model.name,
        "measured": [asdict(size) for size in measured],
        "phases": {
            phase.name: {
                "requests": len(phase.due),
                "in_time": phase.in_time,
                "yardstick": phase.yardstick,
                "lateness_p99_ms": phase.lateness_p99_ms,
                "endings": {
                    ENDINGS[i].label: int((phase.ended == i).sum()) for i in set(phase.ended)
                },
            }
            for phase in phases
        },
        "wrongly_refused": refused,
        "predicted": [
            {"size": model.label(size), "later": number >= first_sizes, **predictions.of(signature)}
            for number, (size, signature) in enumerate(zip(sizes, signatures, strict=True))
        ],
        "replay_differs": replayed.difference is not None,
    }


def _inputs(model: PinnedModel, size: Size) -> tuple[Tensors, ...]:
    rng = np.random.default_rng([INPUTS_SEED, *size])
    return tuple(model.inputs(size, rng) for _ in range(BODIES))


def _signature(model: PinnedModel, inputs: Tensors) -> Signature:
    """As the server tells requests apart by shape."""
    return tuple(tensor.shape[1 if model.batches else 0 :] for tensor in inputs.values())


# ── each size alone ──────────────────────────────────────────────────────────────────────────


def _alone(
    model: PinnedModel, inputs: Sequence[Sequence[Tensors]], root: Path, seconds: float
) -> list[Measured]:
    """Spend about so many seconds on each size in each of three ways."""
    arguments = ["-m", "bench.real_models", model.name, str(seconds)]
    command = pinned(cores().server, [sys.executable, *arguments])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    measurements = []
    with servers.slacktide(lay_out([model], root, stated=True)) as serving:
        for rows, (bare, two_rows) in zip(inputs, json.loads(done.stdout), strict=True):
            body, path = oip_body(rows[0]), serving.path_of(model.name)
            latencies(serving, path, body, count=FIRST)  # until its size is known
            count = max(FIRST, min(1000, round(seconds / float(np.median(bare)))))
            true = float(np.median(latencies(serving, path, body, count=count)))
            loop = h2load(serving, model.name, body, count=count, outstanding=IN_LOOP)
            measurements.append(Measured(true, 1.0 / loop.per_second, tuple(bare), two_rows))
    return measurements


def _bare_loop(model: PinnedModel, seconds: float) -> list[tuple[list[float], float]]:
    """For each size: runs of one row in onnxruntime alone, and the median of two rows."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.file(), options, providers=["CPUExecutionProvider"]
    )
    times_of_sizes = []
    for size in (*model.sizes, *model.later):
        single = list(_inputs(model, size))
        double = [
            {key: np.concatenate([tensor] * 2) for key, tensor in row.items()}
            for row in (single if model.batches else [])
        ]
        times: list[list[float]] = []
        for feeds in (single, double):
            begin = time.perf_counter()
            taken: list[float] = []
            while feeds and (len(taken) < 4 or time.perf_counter() - begin < seconds / 2):
                start = time.perf_counter()
                session.run(None, feeds[len(taken) % len(feeds)])
                taken.append(time.perf_counter() - start)
            times.append(taken[1:])  # the first is a warm-up
        times_of_sizes.append((times[0], float(np.median(times[1] or times[0]))))
    return times_of_sizes


# ── the mix ──────────────────────────────────────────────────────────────────────────────────


def _phase(
    serving: Serving,
    model: PinnedModel,
    mix: Mix,
    inputs: Sequence[Sequence[Tensors]],
    measured: Sequence[Measured],
    quick: bool,
) -> Phase:
    """One run, and its yardstick."""
    inputs, measured = inputs[: mix.sizes], measured[: mix.sizes]
    rate = LOAD / float(np.mean([size.lane for size in measured]))
    duration = QUICK if quick else min(max(mix.requests / rate, SHORTEST), LONGEST)
    streams = tuple(
        Stream(
            model.name,
            Poisson(rate / len(inputs)),
            Fixed(mix.factor * size.true),
            payload=FilePayload(npz_files(f"{model.name}-{number}", rows)),
            name=str(number),
        )
        for number, (rows, size) in enumerate(zip(inputs, measured, strict=True))
    )
    spec = LoadSpec(
        target=Target(Transport.HTTP, "127.0.0.1", serving.port),
        streams=streams,
        duration=duration,
        warmup=WARMUP,
        seed=sum(map(ord, mix.name)),
        connections=CONNECTIONS,
        patience=PATIENCE,
    )
    schedule, log = uvloop.run(sent(spec))
    on_the_way = np.array([size.on_the_way for size in measured])
    sized = Sized(
        Arrivals(schedule.due, schedule.allowance - on_the_way[schedule.stream]), schedule.stream
    )
    # What a batch saves over its rows by themselves.
    saved = float(np.median([2.0 * np.median(size.bare) - size.two_rows for size in measured]))
    fixed = (
        min(max(saved, 0.0), 0.5 * min(size.lane for size in measured)) if model.batches else 0.0
    )
    possible = slack_by_size(
        sized,
        [size.in_lane for size in measured],
        fixed,
        DEFAULT_MAX_BATCH if model.batches else 1,
        seed=spec.seed,
    )
    body = oip_body(inputs[0][0])
    settle(
        serving, serving.path_of(model.name), body, within=3.0 * measured[0].true + 0.02
    )  # nothing is left of this run when the next begins
    late = float(np.percentile(log.lateness(), 99)) * 1e3
    return Phase(mix.name, schedule.due, schedule.stream, log.endings(), possible, late)


# ── what was predicted ───────────────────────────────────────────────────────────────────────


class Predictions(Watcher):
    """Reads from a recording what each size was predicted to take, and what it took."""

    def __init__(self) -> None:
        self._before: dict[Signature, float] = {}
        """Median predicted before the first request."""
        self._learnt: dict[Signature, float] = {}
        """After `LEARNT` requests."""
        self._took: defaultdict[Signature, list[float]] = defaultdict(list)
        """Seconds of batches of one row."""
        self._running: dict[int, Batch] = {}

    def of(self, signature: Signature) -> dict[str, float]:
        """Medians in seconds, NaN where there is none. `took` is of all batches; `then` of up to
        `JUDGED` after the first `LEARNT`, for a machine may have become another minutes later."""
        took = self._took[signature]
        then = took[LEARNT : LEARNT + JUDGED]
        return {
            "before": self._before.get(signature, float("nan")),
            "learnt": self._learnt.get(signature, float("nan")),
            "took": float(np.median(took)) if took else float("nan"),
            "then": float(np.median(then)) if len(then) >= FEWEST else float("nan"),
            "batches": len(took),
        }

    def before(self, call: Call, engine: Engine) -> None:
        for event in call.events:
            if isinstance(event, Submitted):
                request = event.request
                if request.signature not in self._before:
                    self._before[request.signature] = _median(engine, request)

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        for event in call.events:
            batch = (
                self._running.pop(event.batch, None) if isinstance(event, BatchFinished) else None
            )
            if batch is not None:
                request = batch.members[0]
                took = self._took[request.signature]
                took.append(call.now - batch.started)
                if len(took) == LEARNT:
                    self._learnt[request.signature] = _median(engine, request)
        for command in commands:
            if isinstance(command, RunBatch) and command.batch.rows == 1:
                self._running[command.batch.id] = command.batch


def _median(engine: Engine, request: Request) -> float:
    """Seconds that the request, alone, is predicted to take at the median."""
    pool = engine.snapshot().serving(request.model)[-1]
    return pool.times.of(1, 1, (request,)).quantile(0.5)


# ── what it says ─────────────────────────────────────────────────────────────────────────────


def _line(record: dict[str, Any]) -> str:
    """One model in short, for the terminal."""
    runs = "  ".join(
        f"{name} {phase['in_time']:.3f} ({phase['yardstick']:.3f})"
        for name, phase in record["phases"].items()
    )
    return f"{record['model']}: {runs}, yardstick in brackets"


def _off(size: dict[str, Any], which: str, measured: str) -> float:
    """How far a prediction is from what was measured, percent; NaN where there is none of them."""
    return 100.0 * abs(size[which] / size[measured] - 1.0)


def _summarise(records: Sequence[dict[str, Any]], result: Result) -> None:
    """The goals of each model, worst sizes; then every run and every size."""
    result.details["records"] = list(records)
    runs, sizes = [], []
    for record in records:
        model, phases, predicted = record["model"], record["phases"], record["predicted"]
        behind = 100.0 * (phases["3x"]["yardstick"] - phases["3x"]["in_time"])
        figures = [
            Figure(f"{model}, 10x: in time", phases["10x"]["in_time"], "", at_least(0.97)),
            Figure(f"{model}, 3x: behind the yardstick", behind, "points", at_most(2.0)),
        ]
        if later := [size for size in predicted if size["later"]]:
            name = f"{model}: refused of the first {FIRST} of a size, in time by the yardstick"
            figures.append(Figure(name, record["wrongly_refused"], "", at_most(0.0)))
            off = tuple(_off(size, "before", "took") for size in later)
            name = f"{model}: p50 before a size's first request, off by"
            figures.append(Figure(name, max(off), "%", at_most(30.0), samples=off))
        learnt = tuple(
            off for size in predicted if not np.isnan(off := _off(size, "learnt", "then"))
        )
        if learnt:
            name = f"{model}: p50 after {LEARNT} requests of a size, off by"
            figures.append(Figure(name, max(learnt), "%", at_most(15.0), samples=learnt))
        result.figures += figures
        if record["replay_differs"]:
            result.remarks.append(f"{model}: the replay differs; predictions are of its beginning")
        pairs = zip(predicted, record["measured"], strict=True)
        pace = float(np.nanmedian([size["took"] / alone["lane"] for size, alone in pairs]))
        if not 1.0 / STEADY < pace < STEADY:
            remark = (
                f"{model}: batches of the runs took {pace:.2f} × as long as in the closed loops"
            )
            result.remarks.append(f"{remark}: the machine was not the same")
        for name, phase in phases.items():
            shares = (f"{phase[key]:.3f}" for key in ("in_time", "yardstick"))
            late = f"{phase['lateness_p99_ms']:.1f}"
            runs.append((f"{model} {name}", str(phase["requests"]), *shares, late))
        for prediction, alone in zip(predicted, record["measured"], strict=True):
            seconds = [float(np.median(alone["bare"])), alone["true"], alone["lane"]]
            seconds += [prediction["took"], prediction["before"], prediction["learnt"]]
            cells = ("-" if second != second else f"{1e3 * second:.2f}" for second in seconds)
            sizes.append((f"{model} {prediction['size']}", str(prediction["batches"]), *cells))
    of_runs = ("run", "requests", "in time", "yardstick", "client late, p99 ms")
    result.tables.append(Table("Answered in time", of_runs, tuple(runs)))
    of_sizes = ("size", "batches", "ORT alone", "true", "lane", "p50", "before", "learnt")
    title = f"ms: onnxruntime alone; a request alone; in a closed loop; batches of one: their p50, \
as predicted before the first and after {LEARNT}"
    result.tables.append(Table(title, of_sizes, tuple(sizes)))


if __name__ == "__main__":
    print(json.dumps(_bare_loop(PINNED[sys.argv[1]], float(sys.argv[2]))))

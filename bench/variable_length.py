"""Texts of unequal length: two applications on one model, more than one core can do.

One application sends short texts, the other long ones, to the text encoder, which pads what shares
a batch. Offered are 1.2 times the peak of that mix: what the core could do in onnxruntime alone if
each application were batched by itself at its best size, measured just before. The deadline is the
same for all: three times the P99 of a run alone.

Contenders take turns on the same arrivals: each of our schedulers, `slack` once more with the
length as work hint, and mosec with batching, which pads as well. All see the application's name and
none the length, but `slack + length`. Each run begins with a calm spell that is not scored and in
which run times can be learnt. Judged by the client's clock from the intended send.

Full: 60 s and three seeds, medians of the seeds. `--quick`: 15 s, one seed. `--rows` picks
contenders by any part of their names.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import servers
from bench.goodput import profile
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_least
from bench.models import Tensors, example_repository, variant_repository
from bench.offer import Answered, Offered, Run, offer, rest
from bench.peers import PeerMissingError
from bench.servers import Serving
from slacktide.lab.examples import example, make_inputs
from slacktide.lab.workloads import Fixed, Poisson
from slacktide.profiles import batch_sizes

MODEL = "text"
MAX_BATCH = 16
LENGTHS = {"short": (8, 64), "long": (64, 256)}
"""Tokens of a text, by application; drawn evenly on a logarithmic scale."""
SHARES = {"short": 0.7, "long": 0.3}
"""Of the requests: about a third and two thirds of the work."""
TEXTS = 48
"""Different texts of each application."""
LOAD, DEADLINE = 1.2, 3.0
CALM_S, CALM_LOAD = 8.0, 0.3
"""Before each run: seconds, and load as a multiple of the peak."""
WARMUP = 2.0
INPUTS_SEED = 17

SETTINGS = """
slo: 150ms
max_batch: 16
limits: {length: 512}
inputs:
  input_ids: {shape: [44], pad: {axis: 1, value: 0, mask: attention_mask}}
  attention_mask: {shape: [44]}
lengths: [8, 44, 256]
"""
HINT = "work_hint: {input: input_ids, axis: 1}\n"
HINTED = "slack + length"
BY_CLASS = "orloj by class"
"""The strongest reading of Orloj."""
POLICIES = ("slack", HINTED, "orloj", BY_CLASS, "clockwork", "edf", "nexus", "clipper", "fifo")


@dataclass(frozen=True, slots=True)
class Bare:
    """What onnxruntime alone takes for texts of each application, seconds, by batch size."""

    samples: dict[str, dict[int, list[float]]]

    @property
    def peak(self) -> float:
        """Rows/s of the mix where each application is batched by itself, at its best size."""
        cost = {
            name: min(float(np.median(times)) / rows for rows, times in by_size.items())
            for name, by_size in self.samples.items()
        }
        return 1.0 / sum(SHARES[name] * cost[name] for name in cost)

    @property
    def p99_alone(self) -> float:
        """99th percentile of a run of one text of the mix."""
        times = [np.asarray(by_size[1]) for by_size in self.samples.values()]
        weights = [
            np.full(taken.size, SHARES[name] / taken.size)
            for name, taken in zip(self.samples, times, strict=True)
        ]
        joined, weight = np.concatenate(times), np.concatenate(weights)
        order = np.argsort(joined)
        reached = np.searchsorted(np.cumsum(weight[order]), 0.99)
        return float(joined[order][min(int(reached), joined.size - 1)])


def run(options: Options) -> Result:
    """Every contender in turn, for each seed."""
    duration, seeds = (15.0, (1,)) if options.quick else (60.0, (1, 2, 3))
    result = Result("variable_length", seeds=seeds)
    pin(cores().client)
    repositories = _repositories()
    for repository in repositories.values():
        profile(repository / MODEL)
    records = []
    with _all_up(repositories, options, result) as up:
        for seed in seeds:
            bare = measure_bare(2.0 if options.quick else 6.0)
            records.append(_turns(up, bare, duration, seed))
    _summarise(records, result)
    return result


def _repositories() -> dict[str, Path]:
    """The text encoder with and without its length as hint."""
    return {"plain": plain_repository(), "hinted": _repository("hinted", SETTINGS + HINT)}


def plain_repository() -> Path:
    """The text encoder, whose requests are told apart by their application alone."""
    return _repository("plain", SETTINGS)


def _repository(name: str, settings: str) -> Path:
    onnx = example(MODEL).onnx()
    return variant_repository(f"variable_length_{name}", {MODEL: (onnx, settings)})


@contextlib.contextmanager
def _all_up(
    repositories: dict[str, Path], options: Options, result: Result
) -> Iterator[dict[str, Serving]]:
    """All contenders, up together; they cost nothing while nobody asks them."""
    with contextlib.ExitStack() as stack:
        up: dict[str, Serving] = {}
        for name in (name for name in POLICIES if options.wants(name)):
            repository = repositories["hinted" if name == HINTED else "plain"]
            flags = ["--scheduler", name.partition(" ")[0]]
            if name == BY_CLASS:
                flags += ["--scheduler-option", "times=by_class"]
            up[name] = stack.enter_context(servers.slacktide(repository, *flags))
        if options.peers and options.wants("mosec"):
            try:
                file = example_repository() / MODEL / "1" / "model.onnx"
                up["mosec"] = stack.enter_context(servers.mosec(MODEL, file))
            except (PeerMissingError, servers.ServerFailedError) as error:
                result.remarks.append(str(error))
        yield up


def _turns(up: dict[str, Serving], bare: Bare, duration: float, seed: int) -> dict[str, Any]:
    """The same arrivals to each contender, one after the other."""
    allowance = DEADLINE * bare.p99_alone
    calm, load = (load_of(factor * bare.peak, allowance) for factor in (CALM_LOAD, LOAD))
    runs = {}
    for name, serving in up.items():
        offer(serving, calm, duration=CALM_S, warmup=0.0, seed=seed)
        rest(serving, [MODEL], bare.p99_alone)
        offered_run = offer(serving, load, duration=duration, warmup=WARMUP, seed=seed)
        runs[name] = {
            "goodput": _goodput(offered_run),
            "applications": {
                offered.label: asdict(offered_run.models[offered.label]) for offered in load
            },
            "lateness_p99_ms": offered_run.lateness_p99_ms,
            "complaints": dict(offered_run.complaints),
        }
        print(f"seed {seed}: {name} {runs[name]['goodput']:.3f}", file=sys.stderr, flush=True)
    return {
        "seed": seed,
        "duration_s": duration,
        "peak_rps": bare.peak,
        "p99_alone_ms": bare.p99_alone * 1e3,
        "runs": runs,
    }


def load_of(rate: float, allowance: float) -> list[Offered]:
    """Both applications in their shares of `rate` rows/s, due `allowance` seconds after arrival."""
    inputs = texts()
    return [
        Offered(MODEL, Poisson(SHARES[name] * rate), Fixed(allowance), name, inputs[name])
        for name in LENGTHS
    ]


def texts() -> dict[str, tuple[Tensors, ...]]:
    """Texts of each application, the same on every call."""
    drawn = make_inputs(MODEL, 2000, INPUTS_SEED).requests
    selected = {}
    for name, (shortest, longest) in LENGTHS.items():
        fits = [text for text in drawn if shortest <= text["input_ids"].shape[1] <= longest]
        selected[name] = tuple(fits[:TEXTS])
    return selected


def _goodput(run: Run) -> float:
    """On time ÷ submitted, both applications together."""
    answered: Sequence[Answered] = list(run.models.values())
    submitted = sum(length.submitted for length in answered)
    return sum(length.goodput * length.submitted for length in answered) / submitted


def _summarise(records: Sequence[dict[str, Any]], result: Result) -> None:
    """Medians of the seeds; differences and ratios are formed within a seed."""
    result.details["records"] = list(records)
    names = list(records[0]["runs"])
    goodputs = {name: [record["runs"][name]["goodput"] for record in records] for name in names}
    labels = [f"{MODEL}/{name}" for name in LENGTHS]
    lines = []
    for name in names:
        parts = [
            float(np.median([r["runs"][name]["applications"][label]["goodput"] for r in records]))
            for label in labels
        ]
        cells = (float(np.median(goodputs[name])), *parts)
        lines.append((name, *(f"{value:.3f}" for value in cells)))
    columns = ("contender", "goodput", *LENGTHS)
    result.tables.append(Table("Answered in time, by application", columns, tuple(lines)))
    for key, unit in (("peak_rps", "rows/s"), ("p99_alone_ms", "ms")):
        value = float(np.median([record[key] for record in records]))
        result.figures.append(Figure(key.rpartition("_")[0].replace("_", " "), value, unit))
    if "slack" not in names:
        return
    slack = np.array(goodputs["slack"])
    others = [name for name in POLICIES if name in names and name not in ("slack", HINTED)]
    if others:
        best = np.max([goodputs[name] for name in others], axis=0)
        _figure(result, "slack over the best other policy, points", 100 * (slack - best), 3.0)
    for name, least in (("edf", 1.1), ("fifo", 1.5), ("mosec", 1.5)):
        if name in names:
            # Nobody in time is as bad as one in a thousand: a ratio must exist.
            ratio = slack / np.maximum(goodputs[name], 1e-3)
            _figure(result, f"slack ÷ {name}", ratio, least)
    if HINTED in names:
        gain = 100 * (np.array(goodputs[HINTED]) - slack)
        _figure(result, "length as hint over slack, points", gain, 0.0)
    late = max(run["lateness_p99_ms"] for record in records for run in record["runs"].values())
    if late > 2.0:
        result.remarks.append(f"the client itself was {late:.1f} ms late at p99")


def _figure(result: Result, name: str, values: NDArray[np.float64], least: float) -> None:
    samples = tuple(float(value) for value in values)
    result.figures.append(Figure(name, float(np.median(values)), "", at_least(least), "", samples))


def measure_bare(seconds: float) -> Bare:
    """Run the model in onnxruntime alone, on the servers' core, for about `seconds`."""
    command = [sys.executable, "-m", "bench.variable_length", str(seconds)]
    command = pinned(cores().server, command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    return Bare(
        {
            name: {int(rows): times for rows, times in times_by_rows.items()}
            for name, times_by_rows in document.items()
        }
    )


def _bare_loop(seconds: float) -> dict[str, dict[int, list[float]]]:
    """Batches of each application by itself, sizes in turn."""
    import time

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        example(MODEL).onnx(), options, providers=["CPUExecutionProvider"]
    )
    sizes = batch_sizes(MAX_BATCH)
    times: dict[str, dict[int, list[float]]] = {
        name: {rows: [] for rows in sizes} for name in LENGTHS
    }
    inputs = texts()
    begin, turn = time.perf_counter(), 0
    while turn < 4 or time.perf_counter() - begin < seconds:
        for name, drawn_texts in inputs.items():
            for rows in sizes:
                for repeat in range(max(1, 8 // rows)):
                    feeds = _padded(
                        [drawn_texts[(turn + repeat + i) % len(drawn_texts)] for i in range(rows)]
                    )
                    start = time.perf_counter()
                    session.run(None, feeds)
                    if turn:  # the first is a warm-up
                        times[name][rows].append(time.perf_counter() - start)
        turn += 1
    return times


def _padded(rows: Sequence[Tensors]) -> dict[str, NDArray[Any]]:
    longest = max(row["input_ids"].shape[1] for row in rows)
    return {
        key: np.concatenate(
            [np.pad(row[key], ((0, 0), (0, longest - row[key].shape[1]))) for row in rows]
        )
        for key in rows[0]
    }


if __name__ == "__main__":
    print(json.dumps(_bare_loop(float(sys.argv[1]))))

"""`python -m bench [NAME …] [--quick] [--rows TEXT] [--json FILE] [--list]`.

`python -m bench compare BEFORE AFTER NAME …` runs benchmarks of two commits in turn (compare.py).

Without a name every benchmark runs, the longest last. Exit codes: 0 every goal met, 1 some goal
missed or a benchmark failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from bench import compare
from bench.machine import Theft, cores, cpu_model, load_average
from bench.measurement import Benchmark, Options, Result, write_json
from slacktide._version import BUILD
from slacktide.cli.output import console

BENCHMARKS = {
    "engine_cost": "engine and scheduler alone: µs per request at batch 8",
    "scheduler_decisions": "one decision, one insertion, add and take",
    "refusals": "how soon slack refuses, in virtual time",
    "planner_cost": "ms for one plan: vertical over 500 queued, joint for 64 cores",
    "variant_planner": "plans of variants beside the optimum and an upper bound; ms for one",
    "placement": "placements of pipelines: ms for one, and beside the best of all choices",
    "simulation": "requests simulated per second on one core, memory over ten million",
    "latency_fit": "model of cores and batch: how well it fits the residual classifier",
    "ramp_training": "ramps of early exits: styles, ridge and logistic regression, on streams",
    "exits_cost": "stages beside the model whole: CPU time, memory; µs of the loop for a release",
    "startup": "start to ready, import time, size of the core install",
    "grpc_front_end": "our gRPC front end beside empty handlers of each gRPC stack",
    "overhead": "tiny MLP through the whole server: requests/s, hop, p50, beside other servers",
    "pipelines": "a pipeline on one core: hop, cost of the loop, whole frames, clients that go",
    "crops": "crops of a frame between two stages: µs of the loop, hop, ms of cutting",
    "throughput": "residual classifier, saturated, beside a bare onnxruntime loop",
    "shared_lane": "three models on one core: goodput and CPU time per batch",
    "windows": "three models on two cores: unscheduled, lanes, a timetable",
    "variable_length": "two applications with short and long texts: our schedulers, and mosec",
    "notice": "bodies that follow their headers: planned on, and not",
    "memory": "a minute at ten times capacity: does memory stay bounded, is everybody answered",
    "hostile": "a canary beside attacks: what one client's bytes cost another, and memory",
    "depth_switches": "switches between depths of one file, live: ms each",
    "faults": "kill -9 in the middle of a batch: seconds to notice, and to be ready again",
    "resize": "cores moved between running workers: how soon, how well, at what price",
    "priority": "a worker's policy, niceness, slice: beside a busy neighbour, on the loop's core",
    "left_in_peace": "CPU that arrivals take from a running model on the same core",
    "large_bodies": "lone requests of 150 and 600 KB: CPU copy by copy, and p50",
    "links": "bytes through the load generator's link, by the trace and beside the kernel's tbf",
    "client_cost": "what the client library costs a camera, in CPU and bytes",
    "recording_cost": "what recording adds to each request, in time and bytes",
    "twin": "recorded servers: replayed to the bit, and predicted beside what they did",
    "live_clients": "four cameras on links that change, live and simulated",
    "many_sessions": "a thousand sessions of frames on a family that answers from its profile",
    "real_models": "six models of others, three sizes mixed: in time, and predicted how well",
    "exits_of_others": "early exits of four models of others: agreement, and what stages cost",
    "shaped_link": "cores that follow a network: violations beside one core, cost beside two",
    "goodput": "answers in time under load and overload, beside yardsticks and other servers",
}
"""Modules of this package with a `run`, in the order they run, and what they measure."""

NOTICEABLE_THEFT = 0.01
"""Of the CPU time wanted: more of it kept back by the host spoils figures."""


def benchmark(name: str) -> Benchmark:
    """The `run` of one benchmark."""
    run: Benchmark = importlib.import_module(f"bench.{name}").run
    return run


def main() -> int:
    """Run what was asked for; see the module docstring."""
    if sys.argv[1:2] == ["compare"]:
        return compare.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure; README.md in this folder explains each."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all")
    parser.add_argument("--quick", action="store_true", help="short rounds, not for quoting")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows that contain TEXT")
    parser.add_argument("--no-peers", action="store_true", help="leave other servers out")
    parser.add_argument("--fresh", action="store_true", help="measure stored rows anew")
    beside = "package of another commit (src) or build: served in turn, where it can be"
    parser.add_argument("--beside", action="append", default=[], metavar="FOLDER", help=beside)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    arguments = parser.parse_args()
    if arguments.list:
        for name, summary in BENCHMARKS.items():
            print(f"{name:<22}{summary}")
        return 0
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark is called {name!r}; there are: {', '.join(BENCHMARKS)}")
    options = Options(
        arguments.quick,
        arguments.rows,
        not arguments.no_peers,
        arguments.fresh,
        tuple(str(Path(folder).resolve()) for folder in arguments.beside),
    )
    return _run(arguments.names or list(BENCHMARKS), options, arguments.json)


def _run(names: list[str], options: Options, json_path: Path | None) -> int:
    out = console()
    where = cores()
    out.print(
        f"{cpu_model()}; servers on core {where.server}, clients on core {where.client}; "
        f"load average {load_average():.2f}; {BUILD} build"
    )
    if where.shared:
        out.print("only one core: servers and clients take each other's time", style="yellow")
    done: list[tuple[Result, Options]] = []
    failed = False
    for name in names:
        theft = Theft()
        try:
            result = benchmark(name)(options)
        except Exception:  # one that cannot run must not hide the others' figures
            traceback.print_exc()
            failed = True
            continue
        stolen = theft.share()
        if stolen >= NOTICEABLE_THEFT:
            result.remarks.append(f"the host kept back {stolen:.0%} of the CPU time wanted")
        result.show(out)
        done.append((result, options))
        if json_path is not None:
            write_json(json_path, done)
    missed = [(result.name, figure) for result, _ in done for figure in result.missed]
    for name, figure in missed:
        out.print(f"missed: {name}: {figure.name}", style="red", markup=False)
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())

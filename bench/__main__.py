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
    "scheduler_decisions": "µs of one decision, one insertion, and one add and take",
    "refusals": "time until slack refuses a request, in virtual time",
    "planner_cost": "ms per plan: vertical with 500 queued requests, joint with 64 cores",
    "variant_planner": "plans of variants against the optimum and an upper bound; ms per plan",
    "placement": "placements of pipelines: ms each, and quality against the best of all choices",
    "simulation": "requests simulated per second on one core, memory over ten million",
    "latency_fit": "fit of the model of cores and batch to the residual classifier",
    "ramp_training": "training of ramps: styles, ridge and logistic regression, on streams",
    "exits_cost": "a split model against the whole one: CPU time, memory; loop µs per release",
    "startup": "time from start to ready, import time, size of the core install",
    "grpc_front_end": "our gRPC front end against empty handlers of other gRPC stacks",
    "peer_link": "forwarding to another server: CPU of both sides, against a stream of grpc.aio",
    "overhead": "tiny MLP through the whole server: requests/s, hop, p50, against other servers",
    "pipelines": "a pipeline on one core: hop, loop time, complete frames, clients that leave",
    "crops": "crops between two stages: loop µs, hop, ms to cut them",
    "precisions": "models of others in OpenVINO, bfloat16 and int8: rows/s and agreement",
    "throughput": "residual classifier, saturated, against a bare onnxruntime loop",
    "shared_lane": "three models on one core: goodput and CPU time per batch",
    "windows": "three models on two cores: unscheduled, on lanes, by a timetable",
    "variable_length": "two applications with short and long texts: our schedulers and mosec",
    "notice": "bodies that follow their headers: with and without announcements",
    "memory": "a minute at ten times capacity: memory, and whether every request is answered",
    "hostile": "a canary client during attacks: its latency, and memory",
    "depth_switches": "live switches between depths of one file: ms per switch",
    "cluster_live": "three servers that answer for each other: gain, cost",
    "cluster_faults": "three servers under load while one dies, hangs or is cut off",
    "cluster_updates": "servers without their supervisor, and servers that are replaced",
    "cluster_ray": "two servers that Ray Serve keeps: replica, node and head killed; scaling",
    "faults": "kill -9 during a batch: seconds until noticed, and until the model is ready",
    "resize": "cores moved between running workers: delay, effect and cost",
    "priority": "a worker's policy, niceness and slice: beside a busy process, on the loop's core",
    "left_in_peace": "CPU time that arrivals take from a model running on the same core",
    "large_bodies": "single requests of 150 and 600 KB: CPU time of each copy, and p50",
    "links": "bytes through the load generator's link, against the trace and the kernel's tbf",
    "client_cost": "cost of the client library for a camera, in CPU time and bytes",
    "recording_cost": "cost of recording per request, in time and bytes",
    "twin": "recorded servers: replays to the bit, and predictions against the recording",
    "live_clients": "four cameras on links that change, live and simulated",
    "many_sessions": "a thousand sessions of frames on a family with profiled latencies",
    "real_models": "six public models, three sizes mixed: share in time, errors of predictions",
    "real_pictures": "public models behind JPEG and files: answers, time, against their packages",
    "real_video": "a real camera: what exits and remembered answers save, and who is missed",
    "texts": "all-MiniLM-L6-v2 behind its tokenizer: vectors, µs, short texts beside long ones",
    "exits_of_others": "early exits of four public models: agreement, and cost of stages",
    "rare_exits": "early exits: rare answers, and an application of little traffic",
    "cluster": "several servers in virtual time: the forwarding rule against other balancers",
    "shaped_link": "cores that follow a network: violations against one core, cost against two",
    "goodput": "answers in time under load and overload, against yardsticks and other servers",
}
"""What each module with a `run` measures, in the order in which they run."""

NOTICEABLE_THEFT = 0.01
"""Share of the requested CPU time; figures are unreliable if the host withholds more."""


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
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default: all")
    parser.add_argument(
        "--quick", action="store_true", help="run short rounds; do not quote results"
    )
    parser.add_argument(
        "--rows", default="", metavar="TEXT", help="measure only rows that contain TEXT"
    )
    parser.add_argument("--no-peers", action="store_true", help="skip other servers")
    parser.add_argument("--fresh", action="store_true", help="measure stored rows again")
    beside = "package of another commit (src) or build, measured in turn with this one"
    parser.add_argument("--beside", action="append", default=[], metavar="FOLDER", help=beside)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
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
        out.print("there is only one core, so servers and clients slow each other", style="yellow")
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
            result.remarks.append(f"the host withheld {stolen:.0%} of the requested CPU time")
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

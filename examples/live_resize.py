"""A live resize: cores follow a fluctuating network link. Takes about a minute.

    python examples/live_resize.py

Street frames go to the example classifier over a link whose bandwidth falls every few seconds, so
that the frames arrive with little time left: one core is then too slow, two are not. The same load
runs against the model on one core, on two, and with `cores: {min: 1, max: 2}`, which scales up when
frames arrive late, and gives the second core back when they no longer do.

The script uses only the command line and the metrics: `slacktide profile`, `serve` and
`load --link`, and GET /metrics. Deadline and link are derived from this machine's profile.
`--json` prints figures for other programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slacktide.executors import CoreProbe, busy_warning
from slacktide.lab.examples import make_repository

MODEL = "residual"
ROWS = 8
"""Frames in one request."""
REQUEST_BYTES = ROWS * 3 * 96 * 96
CALM_S, DIP_S = 4.0, 1.5
"""Seconds for which the link is good, then bad."""
CALM_SHARE = 0.25
"""Share of the deadline that a request spends on a good link."""
BUSY = 0.5
"""Share of one core's time that the load takes."""
VARIANTS = {
    "1 core": "cores: 1\n",
    "2 cores": "cores: 2\n",
    "1 to 2": "cores: {min: 1, max: 2}\nscaling: {name: vertical, scale_down_delay: 1s}\n",
}
SLACKTIDE = (sys.executable, "-m", "slacktide")
PATIENCE_S = 60.0
LEAST_GAIN = 1.15
"""Speed-up by a second core below which there is nothing to show."""


@dataclass(frozen=True)
class Scene:
    """The load of every variant. Seconds, and requests per second."""

    deadline: float
    left_in_dips: float
    """Seconds left to the deadline when a request arrives, while the link is bad."""
    rate: float
    one_core: float
    """p99 of a request on one core."""
    two_cores: float


@dataclass(frozen=True)
class Outcome:
    """The results of one variant."""

    variant: str
    requests: int
    violations: int
    """Requests not answered on time."""
    core_seconds: float
    mean_cores: float
    resizes: int
    timeline: list[int]
    """Cores, four times a second."""
    reasons: dict[str, int]
    """How often each reason of a plan was seen."""


class BusyError(Exception):
    """Other programs hold the cores."""


def main() -> int:
    """Return 0 if scaled cores answer more on time than one core and cost less than two, else 1.
    Return 2 without a second core, without a speed-up, or on a machine too busy to measure."""
    parser = argparse.ArgumentParser(description="Show how cores follow a changing network.")
    parser.add_argument(
        "--seconds", type=float, default=11.0, help="seconds of load for each variant"
    )
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("expected two cores, got one", file=sys.stderr)
        return 2

    def report(text: str) -> None:
        if not arguments.json:
            print(text, flush=True)

    with tempfile.TemporaryDirectory(prefix="slacktide-live-resize-") as place:
        folder = Path(place)
        probe = CoreProbe(*([core] for core in sorted(os.sched_getaffinity(0))[:2]))
        probe.look()
        report("Measuring the model on one core and on two …")
        try:
            scene = prepare(folder, probe)
        except BusyError as error:
            print(error, file=sys.stderr)
            return 2
        report(
            f"A request of {ROWS} frames takes {scene.one_core * 1e3:.0f} ms on one core, "
            f"{scene.two_cores * 1e3:.0f} ms on two (p99).\n"
            f"Deadline {scene.deadline * 1e3:.0f} ms from the send, {scene.rate:.1f} requests/s. "
            f"While the link is bad, {scene.left_in_dips * 1e3:.0f} ms of it are left on arrival.\n"
        )
        if why := without_gain(scene):
            print(why, file=sys.stderr)
            return 2
        outcomes = []
        for variant, settings in VARIANTS.items():
            (folder / "models" / MODEL / "slacktide.yaml").write_text(f"max_batch: 8\n{settings}")
            outcome = run(variant, scene, folder, arguments.seconds)
            outcomes.append(outcome)
            report(line_of(outcome))
            probe.look()
    if warning := busy_warning(probe.share):
        print(warning, file=sys.stderr)
        return 2
    one_core, two, scaled = outcomes
    if arguments.json:
        rows = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"scene": asdict(scene), "outcomes": rows}))
    report(
        f"\nCores of '1 to 2', four times a second (bad link: _):\n"
        f"{''.join(map(str, scaled.timeline))}\n{phases(len(scaled.timeline))}\n"
        f"Reasons of its plans: {', '.join(sorted(scaled.reasons)) or 'none'}"
    )
    better = scaled.violations < one_core.violations and scaled.core_seconds < two.core_seconds
    return 0 if better else 1


def without_gain(scene: Scene) -> str:
    """Return why scaled cores cannot gain anything here; empty if they can."""
    if scene.one_core >= LEAST_GAIN * scene.two_cores:
        return ""
    return (
        "A second core hardly speeds up the model here, so scaled cores cannot gain anything. "
        "Often both are threads of one physical core (see lscpu --extended)."
    )


def line_of(outcome: Outcome) -> str:
    return (
        f"{outcome.variant:>8}: {outcome.violations:3d} of {outcome.requests} not on time, "
        f"{outcome.core_seconds:5.1f} core-seconds ({outcome.mean_cores:.2f} cores), "
        f"{outcome.resizes} resizes"
    )


def phases(count: int) -> str:
    """Return the line under the timeline that marks where the link was bad."""
    cycle = CALM_S + DIP_S
    return "".join("_" if (i / 4) % cycle >= CALM_S else " " for i in range(count))


def prepare(folder: Path, probe: CoreProbe) -> Scene:
    """Make the model, measure it, and write a link under which two cores matter. Raises
    BusyError."""
    repository = folder / "models"
    make_repository(repository, models=[MODEL])
    counts = ("--cores", "1", "--cores", "2", "--budget", "5s")
    document = command("profile", str(repository / MODEL), *counts, "--json")
    record = json.loads(document)["1"]
    probe.note(record["cpu_share"])
    if warning := busy_warning(probe.share):
        raise BusyError(warning)
    table = record["table"]
    if ROWS not in table["batches"]:
        raise BusyError(
            f"{ROWS} frames at once take too long here to be measured in time: this machine is too "
            "slow for the example, or other programs hold its cores."
        )
    at = table["batches"].index(ROWS)
    one_core, two_cores = (table["p99_s"][at][table["cores"].index(count)] for count in (1, 2))
    left = math.sqrt(one_core * two_cores)
    deadline = 6.0 * one_core
    good = REQUEST_BYTES * 8e-6 / (CALM_SHARE * deadline)
    bad = REQUEST_BYTES * 8e-6 / (deadline - left)
    lines = ["time_s,bandwidth_mbps"]
    cycle = CALM_S + DIP_S
    for number in range(60):
        lines.append(f"{number * cycle:g},{good:.3f}")
        lines.append(f"{number * cycle + CALM_S:g},{bad:.3f}")
    (folder / "link.csv").write_text("\n".join(lines) + "\n")
    return Scene(deadline, left, BUSY / one_core, one_core, two_cores)


def run(variant: str, scene: Scene, folder: Path, seconds: float) -> Outcome:
    """Serve the model as its settings say now, and send it the load."""
    with serving(folder / "models") as server:
        load = subprocess.Popen(
            [
                *(*SLACKTIDE, "load", f"127.0.0.1:{server.http}", "--model", MODEL, "--json"),
                *("--arrivals", f"constant:{scene.rate:.3f}", "--duration", f"{seconds}s"),
                *("--rows", str(ROWS), "--deadline", f"{scene.deadline * 1e3:.3f}ms"),
                *("--link", str(folder / "link.csv"), "--patience", "2s"),
            ],
            stdout=subprocess.PIPE,
        )
        watched = watch(server, load)
        output, _ = load.communicate()
    report = json.loads(output)
    total = report["total"]
    submitted = total["submitted"]
    return Outcome(
        variant,
        submitted,
        submitted - total["outcomes"].get("served", 0),
        watched.core_seconds,
        watched.core_seconds / watched.seconds,
        watched.resizes,
        watched.cores,
        watched.reasons,
    )


@dataclass
class Watched:
    """Values of the metrics while the load ran."""

    cores: list[int]
    reasons: dict[str, int]
    core_seconds: float = 0.0
    seconds: float = 0.0
    resizes: int = 0


def watch(server: Server, load: subprocess.Popen[bytes]) -> Watched:
    """Look at the metrics four times a second until the load is over."""
    watched = Watched([], {})
    begin, first = time.monotonic(), server.metrics()
    latest, at = first, begin
    while load.poll() is None:
        time.sleep(max(0.0, begin + 0.25 * (len(watched.cores) + 1) - time.monotonic()))
        latest, at = server.metrics(), time.monotonic()
        watched.cores.append(round(value(latest, "slacktide_lane_cores")))
        for reason in re.findall(r'slacktide_plan_reason\{.*reason="(\w+)"', latest):
            watched.reasons[reason] = watched.reasons.get(reason, 0) + 1
    used = "slacktide_lane_core_seconds_total"
    watched.core_seconds = value(latest, used) - value(first, used)
    watched.seconds = at - begin
    confirmed = 'slacktide_resizes_total{outcome="confirmed"}'
    watched.resizes = round(value(latest, confirmed) - value(first, confirmed))
    return watched


def value(page: str, name: str) -> float:
    """Sum of all samples of a family, or one sample if `name` has labels."""
    pattern = rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$"
    return sum(float(number) for number in re.findall(pattern, page, re.MULTILINE))


@dataclass
class Server:
    """One that is up."""

    http: int
    metrics_port: int

    def metrics(self) -> str:
        return fetch(f"http://127.0.0.1:{self.metrics_port}/metrics")


@contextlib.contextmanager
def serving(repository: Path) -> Iterator[Server]:
    """`slacktide serve`, until the end of the block."""
    ports = [*free_ports(2)]
    flags = ["--http-port", str(ports[0]), "--metrics-port", str(ports[1]), "--grpc-port", "-1"]
    flags += ["--log-level", "warning"]
    process = subprocess.Popen([*SLACKTIDE, "serve", str(repository), *flags])
    try:
        give_up = time.monotonic() + PATIENCE_S
        while True:
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit("the server did not come up")
            with contextlib.suppress(OSError, urllib.error.URLError):
                fetch(f"http://127.0.0.1:{ports[0]}/v2/health/ready")
                break
            time.sleep(0.05)
        yield Server(*ports)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def free_ports(count: int) -> Iterator[int]:
    import socket

    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        yield from [listener.getsockname()[1] for listener in sockets]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        body: Any = answer.read()
        return str(body, "utf-8")


def command(*words: str) -> str:
    """A `slacktide` command that must succeed; what it printed."""
    done = subprocess.run([*SLACKTIDE, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"slacktide {' '.join(words)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

"""A pipeline on frames of streets, live: below, at and above what the server can answer.

Its capacity is measured first, with frames that have time. Every load then plays the same frames,
as often as it takes, with the deadline that the pipeline states.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from slacktide.lab.cli.demo.mechanisms import acted, equip
from slacktide.lab.cli.demo.pipeline_report import ANSWERED, Judged, JudgedFrame, pipeline_report
from slacktide.lab.examples import PIPELINES, ExamplesError, make_repository, pipeline_frames
from slacktide.lab.examples.road_users import QUESTIONS
from slacktide.lab.examples.street import Scene
from slacktide.lab.load.played_calls import CallBody, call_body, get_json, get_metrics, play_calls
from slacktide.lab.load.server_process import ProcessError, serving
from slacktide.lab.load.spec import Target, Transport

Move = Callable[[float, str], None]

STREETS, PROBES = 4, 40
"""Of which the frames are, and how many of them find out the capacity."""
AT_ONCE, CONNECTIONS = 3, 24
"""Frames in flight while capacity is measured, and later at most."""
OVERLAP = 0.5
"""A box shows a road user if at least this part of their union is of both."""


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What is run."""

    pipeline: str
    """An example pipeline."""
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    """The server's, and the client's."""
    seconds: float = 10.0
    """Length of each load."""
    loads: tuple[float, ...] = (0.5, 1.0, 1.5)
    """As parts of the capacity."""
    frames: int = 24
    """Different ones."""
    seed: int = 1
    plain: bool = False
    """Whether its models are served as they come: without early exits, cores that move and
    placement."""


def run_pipeline(
    run: PipelineRun, folder: Path, move: Move = lambda share, what: None
) -> dict[str, Any]:
    """The report, as JSON values (pipeline_report.py). Raises ExamplesError, ProcessError,
    OSError."""
    if run.pipeline not in PIPELINES:
        known = ", ".join(PIPELINES)
        raise ExamplesError(f"no example pipeline is called {run.pipeline!r} (all: {known})")
    move(0.0, f"drawing {run.frames} frames")
    scenes = [
        scene
        for street in range(STREETS)
        for scene in islice(
            pipeline_frames(100 * run.seed + street, start=10 * street),
            len(range(street, run.frames, STREETS)),
        )
    ]
    make_repository(folder / "models", models=[run.pipeline])
    if not run.plain:
        equip(folder / "models", run.pipeline, len(run.cores[0]))
    stated = yaml.safe_load(PIPELINES[run.pipeline].extras()["pipeline.yaml"])
    slo = f"{stated['slo']}"
    stages = [name for name in stated["stages"] if name in QUESTIONS]
    wanted = [f"{name}.{output}" for name in stages for output in ("logits", "rows")]
    wanted += ["street.boxes", "street.classes"]

    def bodies(count: int, **parameters: object) -> list[CallBody]:
        made = [
            call_body({"image": scene.picture[None]}, wanted, report_timing=True, **parameters)
            for scene in scenes
        ]
        return [made[number % len(made)] for number in range(count)]

    def read(number: int, status: int, seconds: float, answer: Any) -> JudgedFrame:
        return seen(scenes[number % len(scenes)], stages, status, seconds, answer)

    move(0.15, "measuring and loading the models")
    flags = () if run.plain else ("--placement", "pipeline")
    with serving(folder / "models", run.cores[0], folder / "server.log", flags) as targets:
        target = targets[Transport.HTTP]
        move(0.4, "measuring the capacity")
        patient = bodies(PROBES, timeout=20_000_000)
        capacity = _capacity(target, run.pipeline, patient, read)
        played = {}
        for place, load in enumerate(run.loads):
            move(0.5 + 0.5 * place / len(run.loads), f"{run.seconds:g} s at {load:g} x capacity")
            rate = load * capacity
            count = max(1, round(rate * run.seconds))
            instants = [number / rate for number in range(count)]
            played[load] = play_calls(
                target, run.pipeline, bodies(count), instants, read, connections=CONNECTIONS
            )
        (stats,) = get_json(target, f"/v2/models/{run.pipeline}/stats")["model_stats"]
        did: list[dict[str, Any]] = []
        if not run.plain:
            metrics = get_metrics(targets.metrics_port)
            did = acted(target, metrics, run.pipeline, folder / "models")
    return pipeline_report(run, slo, capacity, played, stats, did)


def _capacity(
    target: Target, name: str, bodies: list[CallBody], read: Callable[..., JudgedFrame]
) -> float:
    """Frames a second, where a few are always in flight. Raises ProcessError if one is refused."""
    at_once = [0.0] * len(bodies)
    play_calls(target, name, bodies[:4], at_once, read, connections=1)  # the first are slow
    began = time.monotonic()
    answered = play_calls(target, name, bodies, at_once, read, connections=AT_ONCE)
    took = time.monotonic() - began
    if refused := [each.reason for each in answered if each.reason not in ANSWERED]:
        raise ProcessError(f"a frame was not answered although it had time: {refused[0]}")
    return len(bodies) / took


def seen(scene: Scene, stages: list[str], status: int, seconds: float, answer: Any) -> JudgedFrame:
    """What the client makes of an answer."""
    if status != 200:
        return JudgedFrame(seconds, str(answer.get("reason", status)))
    parameters = answer["parameters"]
    missing = tuple(filter(None, parameters.get("partial", "").split(",")))
    reason = "late" if parameters.get("late") else "partial" if missing else "complete"
    slack = {
        name.removesuffix(".budget_us"): value / 1e6
        for name, value in parameters.items()
        if name.endswith(".budget_us")
    }
    outputs = {
        each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]
    }
    judged = judge(scene, [name for name in stages if name not in missing], outputs)
    return JudgedFrame(seconds, reason, missing, slack, judged)


def judge(scene: Scene, stages: list[str], outputs: dict[str, Any]) -> tuple[Judged, ...]:
    """What was said of each box, beside what is so; empty where nothing was asked."""
    boxes = outputs["street.boxes"].reshape(-1, 4)
    kinds = outputs["street.classes"].ravel()
    said: dict[int, dict[str, str]] = {}
    for stage in stages:
        answers = QUESTIONS[stage].answers
        best = outputs[f"{stage}.logits"].argmax(-1)
        for row, box in enumerate(outputs[f"{stage}.rows"].tolist()):
            letters = np.atleast_1d(best[row])
            said.setdefault(box, {})[stage] = "".join(answers[int(each)] for each in letters)
    found = []
    truth = scene.boxes().astype(float)
    for box, told in said.items():
        user = _nearest(boxes[box], truth)
        known = {
            stage: None if user is None else QUESTIONS[stage].of(scene.road_users[user])
            for stage in told
        }
        found.append(Judged(tuple(boxes[box].tolist()), int(kinds[box]), told, known))
    return tuple(found)


def _nearest(box: Any, truth: Any) -> int | None:
    """The road user that a box shows."""
    if not len(truth):
        return None
    low, high = np.maximum(box[:2], truth[:, :2]), np.minimum(box[2:], truth[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(truth[:, 2:] - truth[:, :2], axis=1) + np.prod(box[2:] - box[:2])
    overlap = shared / np.maximum(areas - shared, 1e-12)
    best = int(overlap.argmax())
    return best if overlap[best] >= OVERLAP else None

"""A pipeline on frames of streets, live: below, at and above what the server can answer.

Its capacity is measured first, with frames that have time. Every load then plays the same frames,
as often as it takes, with the deadline that the pipeline states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import yaml

from slacktide.lab.cli.demo.mechanisms import acted, equip
from slacktide.lab.cli.demo.pipeline_report import (
    ANSWERED,
    Judged,
    JudgedFrame,
    pipeline_report,
)
from slacktide.lab.cli.demo.shared import DemoContext, Document
from slacktide.lab.examples import PIPELINES, ExamplesError, make_repository, pipeline_frames
from slacktide.lab.examples.road_users import QUESTIONS
from slacktide.lab.examples.street import Scene
from slacktide.lab.load.played_calls import call_body, get_metrics, model_stats, play_calls
from slacktide.lab.load.server_process import ProcessError
from slacktide.lab.load.spec import Target, Transport

STREETS, PROBES = 4, 40
"""Number of streets that the frames show, and of frames that measure the capacity."""
AT_ONCE, CONNECTIONS = 3, 24
"""Frames in flight while capacity is measured, and later at most."""
PATIENT_US = 20_000_000
"""Deadline of frames that measure the capacity."""


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A pipeline and its loads, as the flags of the command state them."""

    pipeline: str
    seconds: float = 10.0
    loads: tuple[float, ...] = (0.5, 1.0, 1.5)
    frames: int = 24
    """Different ones."""
    seed: int = 1
    plain: bool = False


class SentFrames(NamedTuple):
    """Frames that one pipeline of one server is sent, over and over."""

    target: Target
    pipeline: str
    scenes: Sequence[Scene]
    stages: Sequence[str]
    """Stages behind the detector, which classify its boxes."""

    def play(
        self, instants: Sequence[float], connections: int, **parameters: object
    ) -> list[JudgedFrame]:
        """Send frames that leave at these instants (seconds from now), and judge the answers."""
        outputs = [f"{stage}.{name}" for stage in self.stages for name in ("logits", "rows")]
        outputs += ["street.boxes", "street.classes"]
        bodies = [
            call_body({"image": scene.picture[None]}, outputs, report_timing=True, **parameters)
            for scene in self.scenes
        ]
        sent = [bodies[number % len(bodies)] for number in range(len(instants))]

        def read(number: int, status: int, seconds: float, answer: Any) -> JudgedFrame:
            scene = self.scenes[number % len(self.scenes)]
            return judged_frame(scene, self.stages, status, seconds, answer)

        return play_calls(self.target, self.pipeline, sent, instants, read, connections=connections)

    def capacity(self) -> float:
        """Frames a second, where a few are always in flight. Raises ProcessError if one is
        refused."""
        self.play([0.0] * 4, 1, timeout=PATIENT_US)  # the first are slow
        began = time.monotonic()
        frames = self.play([0.0] * PROBES, AT_ONCE, timeout=PATIENT_US)
        seconds = time.monotonic() - began
        if refused := [frame.reason for frame in frames if frame.reason not in ANSWERED]:
            raise ProcessError(f"a frame was not answered although it had time: {refused[0]}")
        return len(frames) / seconds


def play_pipeline(run: PipelineRun, context: DemoContext) -> Document:
    """The report, see `pipeline_report`. Raises ExamplesError, ProcessError, OSError."""
    if run.pipeline not in PIPELINES:
        names = ", ".join(PIPELINES)
        raise ExamplesError(f"no example pipeline is called {run.pipeline!r} (all: {names})")
    context.move(0.0, f"drawing {run.frames} frames")
    scenes = [
        scene
        for street in range(STREETS)
        for scene in islice(
            pipeline_frames(100 * run.seed + street, start=10 * street),
            len(range(street, run.frames, STREETS)),
        )
    ]
    make_repository(context.models, models=[run.pipeline])
    if not run.plain:
        equip(context.models, run.pipeline, len(context.cores[0]))
    stated = yaml.safe_load(PIPELINES[run.pipeline].extras()["pipeline.yaml"])
    stages = [name for name in stated["stages"] if name in QUESTIONS]
    context.move(0.15, "measuring and loading the models")
    with context.serve(*(() if run.plain else ("--placement", "pipeline"))) as targets:
        target = targets[Transport.HTTP]
        frames = SentFrames(target, run.pipeline, scenes, stages)
        context.move(0.4, "measuring the capacity")
        capacity = frames.capacity()
        played = {}
        for place, load in enumerate(run.loads):
            text = f"{run.seconds:g} s at {load:g} x capacity"
            context.move(0.5 + 0.5 * place / len(run.loads), text)
            rate = load * capacity
            count = max(1, round(rate * run.seconds))
            played[load] = frames.play([number / rate for number in range(count)], CONNECTIONS)
        stats = model_stats(target, run.pipeline)
        metrics = [] if run.plain else get_metrics(targets.metrics_port)
        actions = [] if run.plain else [*acted(target, metrics, run.pipeline, context.models)]
    report = pipeline_report(run, str(stated["slo"]), capacity, played, stats, actions)
    return report | {"cores": context.cores}


def judged_frame(
    scene: Scene, stages: Sequence[str], status: int, seconds: float, answer: Any
) -> JudgedFrame:
    """Judge an answer as its client does."""
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
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in answer["outputs"]
    }
    boxes = judge(scene, [name for name in stages if name not in missing], outputs)
    return JudgedFrame(seconds, reason, missing, slack, boxes)


def judge(scene: Scene, stages: Sequence[str], outputs: Mapping[str, Any]) -> tuple[Judged, ...]:
    """Boxes that stages were asked of, each with the answers and the truth."""
    boxes = outputs["street.boxes"].reshape(-1, 4)
    kinds = outputs["street.classes"].ravel()
    said: dict[int, dict[str, str]] = {}
    for stage in stages:
        answers = QUESTIONS[stage].answers
        best = outputs[f"{stage}.logits"].argmax(-1)
        for row, box in enumerate(outputs[f"{stage}.rows"].tolist()):
            letters = np.atleast_1d(best[row])
            said.setdefault(box, {})[stage] = "".join(answers[int(letter)] for letter in letters)
    judged = []
    for box, texts in said.items():
        user = scene.shown_in(boxes[box])
        true = {stage: None if user is None else QUESTIONS[stage].of(user) for stage in texts}
        judged.append(Judged(tuple(boxes[box].tolist()), int(kinds[box]), texts, true))
    return tuple(judged)

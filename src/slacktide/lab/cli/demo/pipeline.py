"""Live demo of a pipeline on frames of streets: below, at and above the server's capacity.

Capacity is measured first, with frames that have long deadlines. Every load then plays the same
frames in a loop, with the deadline that the pipeline states.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import yaml

from slacktide.lab.cli.demo.mechanisms import counted, equip
from slacktide.lab.cli.demo.shared import (
    DemoContext,
    Document,
    Part,
    levels,
    milliseconds,
    share,
)
from slacktide.lab.examples import PIPELINES, ExamplesError, make_repository, pipeline_frames
from slacktide.lab.examples.road_users import QUESTIONS
from slacktide.lab.examples.street import KINDS, Scene
from slacktide.lab.load.played_calls import call_body, get_metrics, play_calls
from slacktide.lab.load.server_process import ProcessError
from slacktide.lab.load.spec import Target, Transport
from slacktide.lab.reports import TextTable

FRAMES, STREETS, PROBES = 24, 4, 40
"""Number of different frames, of streets that they show, and of frames that measure the capacity.
"""
AT_ONCE, CONNECTIONS = 3, 24
"""Frames in flight while capacity is measured; maximum number in flight under load."""
PATIENT_US = 20_000_000
"""Deadline (µs) of the frames that measure capacity."""
ANSWERED = ("complete", "partial", "late")
SHOWN = 6
"""Maximum number of boxes shown of the example frame."""


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A pipeline and its loads, as the flags of the command state them."""

    pipeline: str
    seconds: float = 10.0
    loads: tuple[float, ...] = (0.5, 1.0, 1.5)
    plain: bool = False


class JudgedBox(NamedTuple):
    """One detected box, with the answers of later stages."""

    kind: str
    answers: Mapping[str, str]
    """Answers by stage."""
    true: Mapping[str, str | None]
    """Right answers by stage; None if there is none, such as for a box without a road user."""


class JudgedFrame(NamedTuple):
    """One frame, as its client saw it."""

    seconds: float
    """Seconds since the frame was due to leave its client."""
    reason: str
    """`complete`, `partial`, `late`, or why it was refused."""
    missing: tuple[str, ...] = ()
    """Stages without an answer."""
    boxes: tuple[JudgedBox, ...] = ()


class SentFrames(NamedTuple):
    """Frames that are sent to a server's pipeline in a loop."""

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
            call_body({"image": scene.picture[None]}, outputs, **parameters)
            for scene in self.scenes
        ]
        sent = [bodies[number % len(bodies)] for number in range(len(instants))]

        def read(number: int, status: int, seconds: float, answer: Any) -> JudgedFrame:
            scene = self.scenes[number % len(self.scenes)]
            return judged_frame(scene, self.stages, status, seconds, answer)

        return play_calls(self.target, self.pipeline, sent, instants, read, connections=connections)

    def capacity(self) -> float:
        """Measure frames per second with a few frames always in flight. Raises ProcessError if a
        frame is refused."""
        self.play([0.0] * 4, 1, timeout=PATIENT_US)  # the first are slow
        began = time.monotonic()
        frames = self.play([0.0] * PROBES, AT_ONCE, timeout=PATIENT_US)
        seconds = time.monotonic() - began
        if refused := [frame.reason for frame in frames if frame.reason not in ANSWERED]:
            raise ProcessError(f"a frame due in {PATIENT_US / 1e6:g} s was refused: {refused[0]}")
        return len(frames) / seconds


def play_pipeline(run: PipelineRun, context: DemoContext) -> Document:
    """Return the report of `pipeline_report`. Raises ExamplesError, ProcessError, OSError."""
    if run.pipeline not in PIPELINES:
        names = ", ".join(PIPELINES)
        raise ExamplesError(f"no example pipeline is called {run.pipeline!r} (all: {names})")
    context.move(0.0, f"drawing {FRAMES} frames")
    scenes = [
        scene
        for street in range(STREETS)
        for scene in islice(pipeline_frames(100 + street, start=10 * street), FRAMES // STREETS)
    ]
    make_repository(context.models, models=[run.pipeline])
    if not run.plain:
        equip(context.models, run.pipeline, len(context.cores[0]))
    stated = yaml.safe_load(PIPELINES[run.pipeline].extras()["pipeline.yaml"])
    stages = [name for name in stated["stages"] if name in QUESTIONS]
    context.move(0.15, "measuring and loading the models")
    with context.serve(*(() if run.plain else ("--placement", "pipeline"))) as targets:
        frames = SentFrames(targets[Transport.HTTP], run.pipeline, scenes, stages)
        context.move(0.4, "measuring the capacity")
        capacity = frames.capacity()
        played = {}
        for place, load in enumerate(run.loads):
            text = f"{run.seconds:g} s at {load:g} x capacity"
            context.move(0.5 + 0.5 * place / len(run.loads), text)
            rate = load * capacity
            count = max(1, round(rate * run.seconds))
            played[load] = frames.play([number / rate for number in range(count)], CONNECTIONS)
        actions = [] if run.plain else counted(get_metrics(targets.metrics_port))
    return pipeline_report(run, str(stated["slo"]), capacity, played, actions)


def judged_frame(
    scene: Scene, stages: Sequence[str], status: int, seconds: float, answer: Any
) -> JudgedFrame:
    """Judge an answer as the client sees it."""
    if status != 200:
        return JudgedFrame(seconds, str(answer.get("reason", status)))
    parameters = answer.get("parameters", {})
    missing = tuple(filter(None, parameters.get("partial", "").split(",")))
    reason = "late" if parameters.get("late") else "partial" if missing else "complete"
    outputs = {
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in answer["outputs"]
    }
    boxes = judge(scene, [name for name in stages if name not in missing], outputs)
    return JudgedFrame(seconds, reason, missing, boxes)


def judge(scene: Scene, stages: Sequence[str], outputs: Mapping[str, Any]) -> tuple[JudgedBox, ...]:
    """Return the boxes that later stages answered, each with the answers and the truth."""
    boxes = outputs["street.boxes"].reshape(-1, 4)
    kinds = outputs["street.classes"].ravel()
    texts_by_box: dict[int, dict[str, str]] = defaultdict(dict)
    for stage in stages:
        answers = QUESTIONS[stage].answers
        best = outputs[f"{stage}.logits"].argmax(-1)
        for row, box in enumerate(outputs[f"{stage}.rows"].tolist()):
            letters = np.atleast_1d(best[row])
            texts_by_box[box][stage] = "".join(answers[int(letter)] for letter in letters)
    judged = []
    for box, texts in texts_by_box.items():
        user = scene.shown_in(boxes[box])
        true = {stage: None if user is None else QUESTIONS[stage].of(user) for stage in texts}
        judged.append(JudgedBox(KINDS[int(kinds[box])], texts, true))
    return tuple(judged)


def pipeline_report(
    run: PipelineRun,
    slo: str,
    capacity: float,
    played: Mapping[float, Sequence[JudgedFrame]],
    actions: Sequence[tuple[str, str, int]] = (),
) -> Document:
    """Return the report. `capacity`: frames per second; `played`: frames by load, where 1.0 is the
    capacity; `actions`: the result of `counted`."""
    judged = [frame for frames in played.values() for frame in frames]
    complete = [frame for frame in judged if frame.reason == "complete"]
    shown = max(complete, key=lambda frame: len(frame.boxes), default=JudgedFrame(0.0, ""))
    right: dict[str, list[bool]] = defaultdict(list)
    for box in (box for frame in judged for box in frame.boxes):
        for stage, true in box.true.items():
            if true is not None:
                right[stage].append(box.answers[stage] == true)
    loads = [_load(load, load * capacity, frames) for load, frames in played.items()]
    heaviest = max(loads, key=lambda load: load["load"])
    return {
        "kind": "pipeline",
        "headline": (
            f"At {heaviest['load']:g} x capacity {heaviest['complete'] + heaviest['partial']:.0%} "
            f"of the frames were answered within {slo}: {heaviest['complete']:.0%} by all stages, "
            f"{heaviest['partial']:.0%} by some."
        ),
        **asdict(run),
        "slo": slo,
        "capacity": capacity,
        "loads": loads,
        "right": {stage: share(flags) for stage, flags in right.items()},
        "shown": [
            {"kind": box.kind, "said": box.answers, "true": box.true} for box in shown.boxes[:SHOWN]
        ],
        "actions": list(actions),
    }


def _load(load: float, rate: float, frames: Sequence[JudgedFrame]) -> Document:
    count = max(1, len(frames))
    reasons = Counter(frame.reason for frame in frames)
    answered = [frame for frame in frames if frame.reason in ANSWERED]
    missing = Counter(stage for frame in answered for stage in frame.missing)
    return {
        "load": load,
        "rate": rate,
        "frames": len(frames),
        **{name: reasons.pop(name, 0) / count for name in ANSWERED},
        "refused": {reason: number / count for reason, number in reasons.items()},
        "missing": {stage: number / count for stage, number in missing.items()},
        "seconds": levels([frame.seconds for frame in answered], median=50, p99=99),
        "boxes": sum(len(frame.boxes) for frame in answered) / count,
    }


def show_pipeline(report: Document) -> Iterator[Part]:
    """Yield the tables of outcomes, boxes and actions (if any), and the conditions of the run."""
    loads = report["loads"]
    behind = sorted({*report["right"], *(stage for load in loads for stage in load["missing"])})
    lines = []
    for load in loads:
        shares = [load[name] for name in ANSWERED] + [sum(load["refused"].values())]
        shares += [load["missing"].get(stage, 0.0) for stage in behind]
        times = [milliseconds(load["seconds"], level) for level in ("median", "p99")]
        percents = [f"{100 * part:.1f}" for part in shares]
        lines.append((f"{load['load']:g} x", f"{load['rate']:.1f}", *percents, *times))
    title = "Outcomes in % of frames, stages missing in %, and milliseconds to the answer"
    without = [f"no {stage}" for stage in behind]
    headings = ("load", "sent/s", *ANSWERED, "refused", *without, "median", "p99")
    yield TextTable(title, headings, lines)
    lines = [
        (
            box["kind"],
            *(_answer_cell(box["said"].get(stage), box["true"].get(stage)) for stage in behind),
        )
        for box in report["shown"]
    ]
    title = "One frame: the answer for each box (the truth in brackets, if it differs)"
    yield TextTable(title, ("kind", *behind), lines, words=4)
    if report["actions"]:
        lines = [tuple(map(str, action)) for action in report["actions"]]
        headings = ("mechanism", "action", "count")
        yield TextTable("Actions of each mechanism", headings, lines, words=2)
    right = ", ".join(f"{stage} {share:.0%}" for stage, share in report["right"].items())
    yield (
        f"{report['pipeline']} on {len(report['cores'][0])} core(s) for the server and all its "
        f"workers: {report['capacity']:.1f} frames/s with {loads[0]['boxes']:.1f} classified boxes "
        f"each. Correct answers for boxes on a road user: {right or '–'}. The scheduler of a stage "
        "drops rows that cannot be in time; the frame is answered with its other stages."
    )


def _answer_cell(answer: str | None, truth: str | None) -> str:
    if answer is None:
        return "–"
    return answer if answer == truth else f"{answer} ({truth or 'no road user'})"

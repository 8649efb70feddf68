"""Counts the actions of four mechanisms in one pipeline.

These are variants of the detector, early exits of a classifier, moving cores, and placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from slacktide.lab.examples import PIPELINES
from slacktide.lab.load.played_calls import MetricSample

EXITS = {"accuracy_loss": "2%", "ramp_budget": "50%"}
"""Settings of the classifier. On the examples' small crops, a ramp costs much of the time that it
saves; with the default budget, it would be dropped."""


class Action(NamedTuple):
    """Something that a mechanism does, and the server's metric that counts it."""

    mechanism: str
    action: str
    counter: str
    labels: Mapping[str, str] = {}


ACTIONS = (
    Action("variants", "changes of the lane's variant", "variant_switches"),
    Action("variants", "late requests moved to a smaller variant", "rescued"),
    Action("early exits", "requests answered by a ramp", "early_exits"),
    Action("moving cores", "resizes of the lane", "resizes",
           {"outcome": "confirmed"}),
    Action("moving cores", "core-seconds in total", "lane_core_seconds"),
    Action("placement", "placements computed", "placements"),
    Action("placement", "placements computed early", "early_placements"),
    Action("placement", "changes of a model's cores, variants or exits", "placement_rebounds"),
)  # fmt: skip


def equip(models: Path, pipeline: str, cores: int) -> None:
    """Change the settings of an example pipeline's models: all share a lane of up to `cores` cores,
    and the first classifier behind the detector has early exits."""
    classifier = PIPELINES[pipeline].models[1]
    for name in PIPELINES[pipeline].models:
        file = models / name / "slacktide.yaml"
        settings = yaml.safe_load(file.read_text())
        settings |= {"lane": pipeline, "cores": {"min": 1, "max": cores}}
        if name == classifier:
            settings["early_exit"] = EXITS
        file.write_text(yaml.safe_dump(settings, sort_keys=False))


def counted(metrics: Sequence[MetricSample]) -> list[tuple[str, str, int]]:
    """Return what each mechanism did, and how often, from a server's metrics page."""
    rows = []
    for mechanism, action, counter, labels in ACTIONS:
        count = sum(
            sample.value
            for sample in metrics
            if sample.name == f"slacktide_{counter}_total"
            if labels.items() <= sample.labels.items()
        )
        rows.append((mechanism, action, round(count)))
    return rows

"""Sends the rows of a stream to a classifier, each when it is due, and returns the answers.

The load generator proper (`run.py`) measures a server under a workload. This module records single
answers: their class, their latency, and the ramp at which the row left the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from slacktide.lab.load.played_calls import Row, call_body, get_json, model_stats, play_calls
from slacktide.lab.load.server_process import ProcessError
from slacktide.lab.load.spec import Target

CONNECTIONS = 8
TIMEOUT_S = 20.0
"""Timeout of requests without a deadline, long enough that all are answered."""


class PlayedRow(NamedTuple):
    """The answer to one row."""

    seconds: float
    """Latency, counted from the instant at which the row was due."""
    answer: int | None
    """The class with the highest score; None if the deadline was missed."""
    exit: str
    """Name of the tensor at which the row left the network; empty if it ran to the end."""


def play_rows(
    target: Target,
    model: str,
    classes: int,
    rows: Sequence[Row],
    instants: Sequence[float],
    deadline_s: float | None = None,
) -> list[PlayedRow]:
    """Send each row over HTTP when it is due (`instants`, seconds from now), whether or not earlier
    rows are answered, up to `CONNECTIONS` at a time. Requests only the output of `classes` scores,
    because an early exit may lack others. Without a deadline, raises ProcessError for a refusal."""
    output = _scores(get_json(target, f"/v2/models/{model}"), classes)
    parameters = {"report_timing": True, "timeout": round(1e6 * (deadline_s or TIMEOUT_S))}
    bodies = [call_body(row, [output], **parameters) for row in rows]

    def read(number: int, status: int, seconds: float, answer: Any) -> PlayedRow:
        if deadline_s is not None and (status != 200 or seconds > deadline_s):
            return PlayedRow(seconds, None, "")
        if status != 200:
            raise ProcessError(f"a request was refused: {answer['error']}")
        (scores,) = answer["outputs"]
        exit = answer["parameters"].get("exit", "")
        return PlayedRow(seconds, int(np.argmax(scores["data"])), exit)

    return play_calls(target, model, bodies, instants, read, connections=CONNECTIONS)


def exit_stats(target: Target, model: str) -> dict[str, Any]:
    """Return the server's statistics of a model's early exits; empty if the model has none."""
    return dict(model_stats(target, model).get("exit_stats", {}))


def _scores(metadata: Mapping[str, Any], classes: int) -> str:
    """Return the name of the output with a score for each class."""
    (name, *_) = [spec["name"] for spec in metadata["outputs"] if spec["shape"][-1] == classes]
    return str(name)

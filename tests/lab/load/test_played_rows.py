"""Rows that are played to a classifier: with a deadline, what misses it is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from slacktide.lab.load import played_rows
from slacktide.lab.load.played_calls import CallBody
from slacktide.lab.load.played_rows import PlayedRow, play_rows
from slacktide.lab.load.server_process import ProcessError
from slacktide.lab.load.spec import Target, Transport

TARGET = Target(Transport.HTTP, "127.0.0.1", 1)
ROW = {"x": np.zeros((1, 2), np.float32)}
ANSWER = {"outputs": [{"data": [0.1, 0.9]}], "parameters": {"exit": "ramp"}}
REFUSAL = {"error": "no time"}


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A server that answers after 10 ms, after 2 s, and not at all; the timeouts it was sent."""
    sent: list[int] = []

    def play(
        target: Target,
        model: str,
        bodies: Sequence[CallBody],
        instants: Sequence[float],
        read: Callable[..., PlayedRow],
        *,
        connections: int,
    ) -> list[PlayedRow]:
        sent.extend(json.loads(body.head)["parameters"]["timeout"] for body in bodies)
        replies: list[tuple[int, float, Any]] = [
            (200, 0.01, ANSWER),
            (200, 2.0, ANSWER),
            (504, 0.001, REFUSAL),
        ]
        return [read(number, *replies[number]) for number in range(len(bodies))]

    outputs = {"outputs": [{"name": "scores", "shape": [-1, 2]}]}
    monkeypatch.setattr(played_rows, "get_json", lambda target, path: outputs)
    monkeypatch.setattr(played_rows, "play_calls", play)
    return sent


def test_a_row_that_misses_its_deadline_has_no_answer(timeouts: list[int]) -> None:
    rows = play_rows(TARGET, "m", 2, [ROW] * 3, [0.0] * 3, deadline_s=1.0)
    assert rows == [
        PlayedRow(0.01, 1, "ramp"),
        PlayedRow(2.0, None, ""),
        PlayedRow(0.001, None, ""),
    ]
    assert timeouts == [1_000_000] * 3


def test_without_a_deadline_all_are_to_be_answered(timeouts: list[int]) -> None:
    rows = play_rows(TARGET, "m", 2, [ROW] * 2, [0.0] * 2)
    assert [row.answer for row in rows] == [1, 1]
    assert timeouts == [20_000_000] * 2
    with pytest.raises(ProcessError, match="a request was refused: no time"):
        play_rows(TARGET, "m", 2, [ROW] * 3, [0.0] * 3)

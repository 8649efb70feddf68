"""Resizes under way: over once every replica has said what it has, and told as it was read back."""

from __future__ import annotations

import pytest

from slacktide.domain import LaneResized
from slacktide.executors.ports import Resized
from slacktide.models.resize_tracker import ResizeTracker


class Desk:
    """A `ResizeTracker` under a clock of its own, and what it told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[LaneResized] = []
        self.resizing = ResizeTracker(lambda: self.now, self.heard.append)

    def reported(self, lane: str, replica: int, report: Resized) -> None:
        """Replicas were started with two cores."""
        self.resizing.reported(lane, replica, report, intended=(0, 1))

    def counts(self) -> dict[str, int]:
        return {outcome.value: n for outcome, n in self.resizing.outcomes.items() if n}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_lane_is_resized_once_its_last_replica_has_moved(desk: Desk) -> None:
    desk.resizing.begin("lane", (0, 1), [7, 8])
    desk.reported("lane", 7, Resized((0, 1)))
    assert desk.heard == []
    desk.now = 0.004
    desk.reported("lane", 8, Resized((1, 0)))
    assert desk.heard == [LaneResized("lane", (0, 1))]
    assert desk.counts() == {"confirmed": 1}
    assert desk.resizing.seconds.total == 0.004


def test_without_replicas_there_is_nothing_to_wait_for(desk: Desk) -> None:
    desk.resizing.begin("lane", (0,), [])
    assert desk.heard == [LaneResized("lane", (0,))]


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
@pytest.mark.parametrize("instead", [(0,), (0, 1, 2)])
def test_cores_that_one_replica_did_not_get_are_not_the_lanes(
    desk: Desk, caplog: pytest.LogCaptureFixture, order: tuple[int, int], instead: tuple[int, ...]
) -> None:
    desk.resizing.begin("lane", (0, 1), [7, 8])
    reports = {7: Resized(instead, "the node is full"), 8: Resized((0, 1))}
    for replica in order:
        desk.reported("lane", replica, reports[replica])
    assert desk.heard == [LaneResized("lane", instead)]
    assert desk.counts() == {"refused": 1}
    assert "the node is full" in caplog.text


def test_a_refusal_is_logged_once_until_a_resize_succeeds(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    for cores, report in [
        ((0, 1), Resized((0,), "full")),
        ((0, 1), Resized((0,), "full")),
        ((0,), Resized((0,))),
        ((0, 1), Resized((0,), "full")),
    ]:
        desk.resizing.begin("lane", cores, [7])
        desk.reported("lane", 7, report)
    assert caplog.text.count("full") == 2


def test_a_newer_resize_takes_the_place_of_an_older_one(desk: Desk) -> None:
    desk.resizing.begin("lane", (0, 1), [7])
    desk.resizing.begin("lane", (0,), [7])
    desk.reported("lane", 7, Resized((0,)))
    assert desk.heard == [LaneResized("lane", (0,))]
    assert desk.counts() == {"superseded": 1, "confirmed": 1}


def test_a_replica_that_is_gone_is_not_waited_for(desk: Desk) -> None:
    desk.resizing.begin("lane", (0, 1), [7, 8])
    desk.resizing.gone("lane", 7)
    desk.resizing.gone("lane", 99)
    assert desk.heard == []
    desk.reported("lane", 8, Resized((0, 1)))
    desk.resizing.gone("lane", 8)
    desk.reported("lane", 8, Resized((0, 1)))
    assert desk.heard == [LaneResized("lane", (0, 1))]


def test_cores_that_come_later_are_told_once_more(desk: Desk) -> None:
    desk.resizing.begin("lane", (0, 1, 2), [7, 8])
    desk.reported("lane", 7, Resized((0,), "full"))
    desk.reported("lane", 8, Resized((0, 1), "full"))
    desk.reported("lane", 7, Resized((0,), "still full"))
    assert desk.heard == [LaneResized("lane", (0,))]
    desk.reported("lane", 7, Resized((0, 1, 2)))
    desk.reported("lane", 8, Resized((0, 1, 2)))
    assert [event.cores for event in desk.heard[1:]] == [(0, 1), (0, 1, 2)]
    assert desk.counts() == {"refused": 1}
    desk.resizing.begin("lane", (0,), [7, 8])
    assert desk.counts() == {"refused": 1}, "nothing was under way"


def test_a_lane_is_whole_again_once_who_had_less_is_gone(desk: Desk) -> None:
    desk.resizing.begin("lane", (0, 1), [7, 8])
    desk.reported("lane", 7, Resized((0,), "full"))
    desk.reported("lane", 8, Resized((0, 1)))
    desk.resizing.gone("lane", 7)
    assert [event.cores for event in desk.heard] == [(0,), (0, 1)]


def test_a_replica_that_starts_with_less_is_told_of_and_so_is_the_rest(desk: Desk) -> None:
    desk.reported("lane", 7, Resized((0,), "full"))
    desk.reported("lane", 7, Resized((0, 1)))
    desk.reported("lane", 7, Resized((0, 1)))
    assert [event.cores for event in desk.heard] == [(0,), (0, 1)]
    assert desk.counts() == {}

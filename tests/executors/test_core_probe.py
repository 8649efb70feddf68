"""CoreProbe tells cores that other programs hold from free ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from slacktide.executors.core_probe import CoreProbe, busy_warning, cpu_share


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide.executors.core_probe.PAUSES_S", (0.0, 0.0))


class Machine:
    """CPU ÷ wall of each look, by core; the last one for ever."""

    def __init__(self, **shares: Sequence[float]) -> None:
        self._shares = {name: list(values) for name, values in shares.items()}
        self.looks: list[Sequence[int]] = []

    def __call__(self, cores: Sequence[int]) -> float:
        self.looks.append(cores)
        values = self._shares[f"core{cores[0]}"]
        return values.pop(0) if len(values) > 1 else values[0]


def test_every_set_of_cores_is_looked_at_and_the_least_share_is_kept() -> None:
    machine = Machine(core0=[1.0, 1.0, 0.98], core1=[0.95, 0.4])
    probe = CoreProbe([0], [1, 2, 3], compute=machine)
    probe.look()
    assert probe.share == 0.95
    probe.look()
    assert probe.share == 0.4
    assert machine.looks == [[0], [1, 2, 3]] * 2 + [[1, 2, 3]] * 2
    probe.note(None)
    probe.note(0.7)
    assert probe.share == 0.4
    probe.note(0.3)
    assert probe.share == 0.3


def test_a_program_that_runs_for_a_moment_does_not_count() -> None:
    probe = CoreProbe([0], compute=Machine(core0=[0.5, 0.6, 0.99]))
    probe.look()
    assert probe.share == 0.99
    probe = CoreProbe([0], compute=Machine(core0=[0.5, 0.6, 0.55]))
    probe.look()
    assert probe.share == 0.6


def test_the_warning_says_how_much_others_used() -> None:
    assert busy_warning(0.9) == busy_warning(None) == ""
    assert busy_warning(0.4) == (
        "These figures were measured while other programs used 60 % of these cores, so they are "
        "unreliable. Run the command again when the machine is idle."
    )


def test_a_look_leaves_the_thread_where_it_may_run() -> None:
    before = os.sched_getaffinity(0)
    share = cpu_share([min(before)])
    assert 0.0 < share <= 1.0
    assert os.sched_getaffinity(0) == before
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_share([100_000])
    assert os.sched_getaffinity(0) == before

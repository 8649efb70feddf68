"""The short form of `make chaos`, and what it would find."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slacktide.domain import Reason

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"chaos_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while the class is made.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


account, plan = load("account"), load("plan")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_generator_and_server_agree_on_one_outcome_for_every_request(tmp_path: Path) -> None:
    words = ["--minutes", "0.06", "--seed", "1", "--quiet", "--folder", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, str(HERE), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for trouble in plan.Trouble:
        assert f"{trouble.value:44} 1 of 1" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_requests_that_leave_early_have_one_answer_while_workers_die(tmp_path: Path) -> None:
    words = ["--exits", "3000", "--quiet", "--folder", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, str(HERE), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "requests, each with one answer" in done.stdout


def test_the_same_seed_is_the_same_plan() -> None:
    assert plan.draw(7, 20.0) == plan.draw(7, 20.0)
    assert plan.draw(7, 20.0) != plan.draw(8, 20.0)


@pytest.mark.parametrize("seconds", [4.0, 30.0, 100.0])
def test_every_trouble_comes_in_every_round_and_the_full_disk_once(seconds: float) -> None:
    drawn = plan.draw(3, seconds)
    rounds = max(1, round(seconds / plan.ROUND_S))
    for kind in plan.Trouble:
        count = sum(trouble.kind is kind for trouble in drawn.troubles)
        assert count == (1 if kind is plan.Trouble.DISK else rounds)
    assert all(0 <= event.at < seconds for event in (*drawn.calls, *drawn.troubles))
    assert len({call.id for call in drawn.calls}) == len(drawn.calls)


# ── what the books find ──────────────────────────────────────────────────────────────────────────


def story(id: str, answer: str | None, *, complete: bool = True) -> object:
    return account.Story(id, "m", "", complete, answer, left=answer is None)


def line(id: str, status: str) -> object:
    return account.Said(id, "m", status)


STORIES = [
    story("served", "200"),
    story("late", "OK"),
    story("dropped", "504"),
    story("rejected", "RESOURCE_EXHAUSTED"),
    story("gone", None),
    story("half", None, complete=False),
]
LINES = [
    line("served", "200"),
    line("late", "OK"),
    line("dropped", "504"),
    line("rejected", "RESOURCE_EXHAUSTED"),
    line("gone", "499"),
    line("half", "499"),
]
COUNTED = {
    Reason.ON_TIME: 1,
    Reason.AFTER_DEADLINE: 1,
    Reason.EXPIRED: 1,
    Reason.BEHIND_WORK: 1,
    Reason.DISCONNECTED: 1,
}


def found(lines: list[object], counted: dict[Reason, int]) -> list[tuple[str, str]]:
    return list(account.disagreements(STORIES, lines, {"m": counted}))


def test_books_that_agree() -> None:
    assert found(LINES, COUNTED) == []
    # Both may also have been counted: the half one was announced.
    assert found(LINES, {**COUNTED, Reason.DISCONNECTED: 2}) == []
    # It had its outcome, but was gone when the answer was to be written.
    assert found(LINES, {**COUNTED, Reason.DISCONNECTED: 0, Reason.ON_TIME: 2}) == []


@pytest.mark.parametrize(
    ("lines", "counted", "expected"),
    [
        (LINES[1:], COUNTED, ("served", "was answered 200, the server says []")),
        ([*LINES, LINES[0]], COUNTED, ("served", "ended 2 times: ['200', '200']")),
        ([*LINES[:2], line("dropped", "429"), *LINES[3:]], COUNTED, ("dropped", "['429']")),
        ([*LINES, line("stranger", "200")], COUNTED, ("stranger", "unknown to the generator")),
        ([*LINES, line("", "499")], COUNTED, ("", "unknown to the generator")),
        (LINES, {**COUNTED, Reason.ON_TIME: 0}, ("m", "2 were answered OK, 1 had")),
        (LINES, {**COUNTED, Reason.DISCONNECTED: 0}, ("m", "6 requests ended (1 came in part)")),
        (LINES, {**COUNTED, Reason.EXPIRED: 4}, ("m", "1 were answered DEADLINE_EXCEEDED, 4 had")),
    ],
)
def test_books_that_do_not(
    lines: list[object], counted: dict[Reason, int], expected: tuple[str, str]
) -> None:
    where, problem = expected
    assert any(
        disagreement[0] == where and problem in disagreement[1]
        for disagreement in found(lines, counted)
    )


def test_few_clients_that_leave_may_go_unread() -> None:
    leaving = [account.Story(f"{i}", "m", "", complete=True, left=True) for i in range(2)]
    assert account.disagreements(leaving[:1], [], {}) == []
    (wrong,) = account.disagreements(leaving, [], {})
    assert wrong[0] == "(all)"


def test_a_client_that_waits_must_be_answered_with_an_outcome() -> None:
    waiting = account.Story("waits", "m", "", complete=True)
    assert account.disagreements([waiting], [], {}) == [("waits", "has no answer")]
    odd = account.Story("odd", "m", "", complete=True, answer="404")
    (wrong,) = account.disagreements([odd], [line("odd", "404")], {})
    assert wrong == ("odd", "was answered 404, which is no outcome")

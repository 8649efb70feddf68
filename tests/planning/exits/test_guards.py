"""The promise for rare classes and for each application, by the planner that serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.exits.served_exits import POOL, ServedExits, learnt

from slacktide.domain import NEVER, Batch, ExitReport, Leaving, Replica, Request, TimerFired
from slacktide.planning.exits import (
    ApplicationStatus,
    ClassStatus,
    ExitsArranged,
    RampsJudged,
    StatedExits,
)
from slacktide.planning.exits.accuracy_budget import AccuracyBudget, JudgedWindow
from slacktide.planning.exits.exits_status import exits_status
from slacktide.planning.exits.guards import (
    CLASS_ROWS,
    GUARDED_ROWS,
    IDLE_S,
    MOST_APPLICATIONS,
    MOST_CLASSES,
    Applications,
    JudgedClasses,
)
from slacktide.planning.exits.pool_exits import STALE_S, PoolExits
from slacktide.planning.exits.ramps import ExitsAnswer
from slacktide.planning.exits.thresholds import most_wrong, rows_needed

GOOD = (0.9, 0.95, 0.99)
NEEDED = 161
REPLICA = Replica(1, POOL, "m", (0,), 4)


@dataclass
class Stream:
    """Rows of two classes; a share of the rare one's are answered wrongly by sure ramps."""

    rng: np.random.Generator
    rare: float = 0.03
    wrong: float = 0.5

    def row(self, served: ServedExits, *, application: str = "", hard: float = 0.0) -> None:
        number = int(self.rng.random() < self.rare)
        wrong = bool(self.rng.random() < (self.wrong if number else hard))
        base = 0.05 + 0.1 * self.rng.random() if number else 0.2 * self.rng.random()
        unsure = np.full(3, base)
        served.row(unsure, np.full(3, not wrong), number=number, application=application)


def made(**stated: Any) -> ServedExits:
    served = ServedExits(StatedExits(moving=False, **stated))
    served.learn(learnt(GOOD))
    return served


def of_class(served: ServedExits, number: int) -> ClassStatus:
    return next(of for of in served.status.classes if of.number == number)


def of_application(served: ServedExits, name: str) -> ApplicationStatus:
    return next(of for of in served.status.applications if of.name == name)


def keeps_promise(state: PoolExits) -> None:
    """The bound of each class and of each application that may leave, counted anew."""
    ramps, limits = list(state.thresholds), np.array([*state.thresholds.values()])
    if not ramps:
        return

    def wrong(window: JudgedWindow, scale: float = 1.0) -> tuple[int, int]:
        unsure, agrees = window.verdicts(ramps)
        leaves = unsure * scale < limits
        first = leaves.argmax(1)
        rows = np.arange(len(first))
        return int((leaves.any(1) & ~agrees[rows, first]).sum()), len(first)

    for number, window in state.classes.windows.items():
        strict = number in state.stated.whole_model_only
        bad, rows = wrong(window, 0.5 if strict else 1.0)
        most = 0 if strict or rows < GUARDED_ROWS else most_wrong(rows, state.classes.loss)
        assert bad <= most, (number, bad, rows)
    for name in state.applications.admitted if state.applications.budgets else ():
        bad, rows = wrong(state.applications.budgets[name].rows)
        assert bad <= most_wrong(rows, state.stated.accuracy_loss), (name, bad, rows)


class Stepped:
    """The state of one pool, without an engine: each row is judged as it comes."""

    def __init__(self, **stated: Any) -> None:
        self.state = PoolExits(POOL, StatedExits(moving=False, **stated))
        self.state.on_event(learnt(GOOD))
        self.ramps = self.state.ramps
        self.state.on_event(ExitsArranged(POOL, 1, 1, self.ramps))
        rows = 60 * len(self.state.stated.whole_model_only)
        self.state.on_event(
            RampsJudged(
                *(POOL, 1, ((NEVER,) * 3,) * rows, ((False,) * 3,) * rows),
                answers=self.state.stated.whole_model_only * 60,
                supplied=True,
            )
        )
        self.now, self.ids = 0.0, 0
        self.answer: tuple[int, ExitsAnswer] | None = None

    def row(
        self, unsure: float, right: bool, number: int, application: str, delay: int = 0
    ) -> None:
        state, many = self.state, len(self.ramps)
        policy = state.policy()
        assert policy is not None
        listed = application in (policy.applications or ())
        limits = policy.thresholds if listed else (0.0,) * many
        left = next((at for at, limit in enumerate(limits) if unsure < limit), -1)
        self.ids += 1
        self.now += 0.02
        request = Request(self.ids, "m", self.now, 9.0, application=application)
        held = () if listed else (0,)
        batch = Batch(self.ids, REPLICA, (request,), 1, 0.0, 9.0, False, Leaving.RUN_ON, True, held)
        report = ExitReport(
            self.ramps, ((unsure,) * many,), ((right,) * many,), (left,), answers=(number,)
        )
        state.count_batch(report, batch, stopped=False, now=self.now)
        keeps_promise(state)
        if self.answer is not None and self.ids >= self.answer[0]:
            state.accept(self.answer[1], 0.0)
            self.answer = None
        elif self.answer is None and state.due:
            self.answer = self.ids + delay, state.question().answer()
        keeps_promise(state)


ROW = st.tuples(
    st.sampled_from([0.02, 0.1, 0.3, 0.6]),
    st.sampled_from([True] * 9 + [False]),
    st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]),
    st.sampled_from(["", "", "", "a", "b"]),
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(ROW, min_size=20, max_size=60), st.integers(0, 7), st.sampled_from([(), (2,)]))
def test_the_bound_holds_after_every_decision(
    rows: list[tuple[float, bool, int, str]], delay: int, whole: tuple[int, ...]
) -> None:
    stepped = Stepped(accuracy_loss=0.1, whole_model_only=whole)
    for turn in range(8):
        for unsure, right, number, application in rows:
            # Wrong answers come and go, so that thresholds do too.
            stepped.row(unsure, right or turn % 4 < 2, number, application, delay)


def test_a_rare_class_keeps_its_answers_beside_a_common_one() -> None:
    rng = np.random.default_rng(3)
    served, stream = made(), Stream(rng, rare=0.02, wrong=0.4)
    for _ in range(4000):
        stream.row(served)
    rare = of_class(served, 1)
    assert rare.judged >= GUARDED_ROWS
    assert rare.state == "guarded"
    assert rare.wrong <= 0.07 * rare.judged  # two fifths of them would leave wrongly
    left = sum(served.status.exits.values())
    assert left > 0.1 * served.ids


def test_one_rare_row_with_another_answer_moves_thresholds_at_once() -> None:
    served = made()
    for _ in range(400):
        served.row(np.full(3, 0.1), np.ones(3, bool), number=0)
    assert any(served.policy.thresholds)
    served.row(np.full(3, 0.05), np.zeros(3, bool), number=1)
    assert served.wrong[-1]
    assert of_class(served, 1) == ClassStatus(1, 1, 1, 1, "few rows", GUARDED_ROWS - 1)
    assert "class 1" in served.status.reason or not any(served.policy.thresholds)
    for _ in range(400):
        served.row(np.full(3, 0.1), np.ones(3, bool), number=0)
    assert not any(served.policy.thresholds)  # 0.1 is less sure than the rare row
    assert served.status.hold == "no ramp is right often enough"


def test_nothing_leaves_before_rows_of_a_class_of_the_whole_model_are_judged() -> None:
    served = made(whole_model_only=(7,))
    for _ in range(300):
        served.row(np.full(3, 0.1), np.ones(3, bool), number=0)
    assert not any(served.policy.thresholds)
    assert served.policy.whole_model_only == (7,)
    assert served.status.hold == "too few rows of class 7 were judged"
    assert served.status.lacking == GUARDED_ROWS
    assert of_class(served, 7).state == "unguarded"
    never = tuple((NEVER, NEVER, NEVER) for _ in range(GUARDED_ROWS))
    wrong = ((False, False, False),) * GUARDED_ROWS
    numbers = (7,) * GUARDED_ROWS
    served.turn(RampsJudged(POOL, 1, never, wrong, numbers, supplied=True), TimerFired())
    for _ in range(70):
        served.row(np.full(3, 0.1), np.ones(3, bool), number=0)
    assert any(served.policy.thresholds)
    # A row of the class to which ramps give another one: half of its uncertainty is the limit.
    served.row(np.full(3, 0.15), np.zeros(3, bool), number=7)
    for _ in range(70):
        served.row(np.full(3, 0.1), np.ones(3, bool), number=0)
    assert not any(served.policy.thresholds)


def test_an_application_leaves_once_enough_of_its_own_rows_were_judged() -> None:
    served = made()
    for _ in range(400):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="main")
    assert served.policy.applications == ("main",)
    left = sum(served.status.exits.values())
    for _ in range(NEEDED - 1):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="new")
    assert sum(served.status.exits.values()) == left
    new = of_application(served, "new")
    assert (new.judged, new.lacking, new.may_leave) == (NEEDED - 1, 1, False)
    assert new.hold == "too few rows were judged: 160"
    for _ in range(200):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="main")
        served.row(np.full(3, 0.1), np.ones(3, bool), application="new")
    assert served.policy.applications == ("main", "new")
    assert sum(served.status.exits.values()) > left


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_hard_application_is_excluded_and_the_easy_one_goes_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stepped, share, rows = Stepped(), {"easy": 0.001, "hard": 0.2}, {"easy": 0, "hard": 0}
    for _ in range(4_000):
        name = "hard" if rng.random() < 0.05 else "easy"
        stepped.row(0.2 * rng.random(), rng.random() >= share[name], 0, name)
        rows[name] += 1
    state = stepped.state
    easy, hard = (
        next(of for of in exits_status(state).applications if of.name == name) for name in rows
    )
    assert hard.wrong <= 0.01 * rows["hard"]
    assert easy.wrong <= 0.01 * rows["easy"]
    assert sum(state.exits.values()) > 0.7 * rows["easy"]
    assert not hard.may_leave


def test_an_idle_application_is_judged_anew() -> None:
    served = made()
    for _ in range(400):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="main")
        served.row(np.full(3, 0.1), np.ones(3, bool), application="other")
    assert served.policy.applications == ("main", "other")
    for _ in range(int(STALE_S / 0.5)):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="main", seconds=0.5)
    assert served.policy.applications == ("main",)
    assert of_application(served, "other").hold == "rows are judged anew"


def test_labels_of_an_attacker_take_no_place_of_real_applications() -> None:
    served = made()
    for _ in range(400):
        served.row(np.full(3, 0.1), np.ones(3, bool), application="main")
        served.row(np.full(3, 0.1), np.ones(3, bool), application="other")
    for turn in range(1500):
        served.row(np.full(3, 0.1), np.ones(3, bool), application=f"attack-{turn}")
        if turn % 20 == 0:
            served.row(np.full(3, 0.1), np.ones(3, bool), application="main")
            served.row(np.full(3, 0.1), np.ones(3, bool), application="other")
    assert set(served.policy.applications or ()) == {"main", "other"}
    assert len(served.status.applications) <= MOST_APPLICATIONS


def test_full_places_are_given_to_others_after_a_while() -> None:
    applications, loss = Applications(0.5), 0.5
    applications.forget(1)
    whole = AccuracyBudget(loss)
    whole.forget(1)
    report = ExitReport((0,), ((0.1,),), ((True,),), (-1,))
    applications.note([f"app-{at}" for at in range(MOST_APPLICATIONS)], whole, now=0.0)
    for budget in applications.budgets.values():
        for _ in range(rows_needed(loss)):
            budget.add(report)
    applications.note([f"app-{MOST_APPLICATIONS}"], whole, now=0.0)
    assert applications.crowded == 1
    assert f"app-{MOST_APPLICATIONS}" not in applications.budgets
    applications.note(["late"], whole, now=IDLE_S + 1.0)
    assert "late" in applications.budgets
    assert len(applications.budgets) == MOST_APPLICATIONS


def test_the_rarest_of_many_classes_are_guarded_and_supplied_ones_stay() -> None:
    classes = JudgedClasses(1, 0.01)
    classes.add((0,), [(0.1,)] * 3, [(True,)] * 3, (99, 99, 99), supplied=True)
    for number in range(40):
        rows = 40 - number
        classes.add((0,), [(0.1,)] * rows, [(True,)] * rows, (number,) * rows)
    assert set(classes.windows) == {99, *range(40 - MOST_CLASSES + 1, 40)}
    classes.add((0,), [(0.1,)] * 999, [(True,)] * 999, (39,) * 999)
    assert len(classes.windows[39]) == CLASS_ROWS


@pytest.mark.parametrize("remembers", [False, True])
def test_remembered_answers_of_a_class_count_without_a_margin(remembers: bool) -> None:
    classes = JudgedClasses(2, 0.01, remembers=remembers)
    rows = [[0.4, 0.4]] + [[0.1, 0.1]] * 59
    agrees = [[False, False]] + [[True, True]] * 59
    classes.add([0, 1], rows, agrees, [7] * 60)
    guard = classes.guard(7, [0, 1])
    assert guard is not None
    assert guard.highest().tolist() == pytest.approx([0.4 if remembers else 0.2, 0.2])
    assert guard.search([1]).uncertainty.max() == pytest.approx(0.2)
    behind = classes.guard(7, [1])
    assert behind is not None
    assert behind.highest().tolist() == pytest.approx([0.2])
    strict = JudgedClasses(2, 0.01, (7,), remembers=remembers)
    strict.add([0, 1], rows, agrees, [7] * 60)
    alone = strict.guard(7, [0, 1])
    assert alone is not None
    assert alone.highest().tolist() == pytest.approx([0.2, 0.2])

"""`make_scheduler`: names, options, and the sentences for mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest

from slacktide.domain import Reason, Request
from slacktide.domain.options import OptionError, option, plain
from slacktide.domain.units import SECONDS
from slacktide.scheduling import POLICIES, make_scheduler
from slacktide.scheduling.edf import Edf
from slacktide.scheduling.fifo import Fifo
from slacktide.scheduling.orloj import Orloj, OrlojText
from slacktide.scheduling.slack import Slack
from slacktide_papers.policies.clockwork import Clockwork
from slacktide_papers.policies.sized_fifo import Clipper, Nexus
from slacktide_papers.policies.symphony import Symphony

KINDS = {
    "fifo": Fifo,
    "edf": Edf,
    "orloj": Orloj,
    "orloj_text": OrlojText,
    "slack": Slack,
}
OF_PAPERS = {"clipper": Clipper, "clockwork": Clockwork, "nexus": Nexus, "symphony": Symphony}


def made(lab, name: str, **options: object) -> object:
    times = lab.LogNormalTimes(lab.residual)
    return make_scheduler(name, options, max_batch=8, times=times, view=lab.LaneView())


def test_every_policy_is_made_with_its_defaults_and_again_from_them(lab) -> None:
    assert set(POLICIES) == KINDS.keys() | OF_PAPERS.keys()
    for name, kind in KINDS.items():
        assert type(made(lab, name)) is kind
        assert type(made(lab, name, **plain(POLICIES.read(name, {})))) is kind
    for name, kind in OF_PAPERS.items():
        assert type(made(lab, name)._scheduler) is kind
        assert type(made(lab, name, **plain(POLICIES.read(name, {})))._scheduler) is kind


def test_whole_numbers_and_lists_are_taken_for_what_they_mean(lab) -> None:
    assert isinstance(made(lab, "fifo", max_delay=1, preferred=[4, 8], max_queue=None), Fifo)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("slak", {}, r"expected a scheduler, got 'slak'; did you mean 'slack'\?"),
        (
            "zzz",
            {},
            r"expected a scheduler, got 'zzz'; valid: clipper, clockwork, edf, fifo, nexus, orloj, "
            "orloj_text, slack, symphony",
        ),
        ("slack", {"levls": 2}, r"scheduler 'slack': levls: unknown key; did you mean 'levels'\?"),
        ("slack", {"kappa": "much"}, r"scheduler 'slack': kappa: expected a number, got 'much'"),
        ("slack", {"kappa": 7.0}, r"'slack': kappa: expected 0 to 1, got 7.0"),
        ("slack", {"kappa": 0.5, "deferral_discount": 0.5}, "stated twice"),
        ("slack", {"levels": True}, r"levels: expected a whole number, got True"),
        ("edf", {"guarantee": "p50"}, r"guarantee: expected 'expected' or 'p99', got 'p50'"),
        ("edf", {"max_queue": 2.5}, r"max_queue: expected a whole number, got 2.5"),
        ("edf", {"max_queue": 0}, r"max_queue: expected at least 1, got 0"),
        ("clipper", {"increase": 0.0}, r"increase: expected more than 0, got 0.0"),
        ("clipper", {"decrease": 1.0}, r"decrease: expected more than 0 and less than 1, got 1.0"),
        ("clipper", {"max_queue": 0}, r"max_queue: expected at least 1"),
        ("nexus", {"cycles": 0.5}, r"cycles: expected at least 1, got 0.5"),
        ("nexus", {"max_queue": 0}, r"max_queue: expected at least 1"),
        ("clockwork", {"window": 0}, r"window: expected at least 1, got 0"),
        ("clockwork", {"tolerance": -0.1}, r"tolerance: expected at least 0, got -0.1"),
        ("clockwork", {"tolerance": inf}, r"tolerance: expected at least 0, got inf"),
        ("clockwork", {"max_queue": 0}, r"max_queue: expected at least 1"),
        ("orloj", {"b": 0.0}, r"'orloj': b: expected more than 0, got 0.0"),
        ("orloj", {"steps": [[0.5]]}, r"steps: expected \(seconds after the deadline, cost\)"),
        (
            "orloj",
            {"steps": [[0.5, 1], [0.2, 1]]},
            r"ascending, got \(\(0.5, 1.0\), \(0.2, 1.0\)\)",
        ),
        ("orloj_text", {"best_effort_share": 2.0}, r"best_effort_share: expected 0 to 1"),
        ("orloj_text", {"max_queue": 0}, r"max_queue: expected at least 1"),
        ("fifo", {"preferred": "48"}, r"preferred: expected a list, got '48'"),
        ("fifo", {"preferred": [0]}, r"preferred: expected at least 1, got 0"),
        ("fifo", {"timeout": "5"}, r"timeout: expected a duration with its unit"),
    ],
)
def test_mistakes_are_named(lab, name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        made(lab, name, **options)


def test_max_batch_must_hold_a_row(lab) -> None:
    times = lab.LogNormalTimes(lab.residual)
    with pytest.raises(OptionError, match="max_batch"):
        make_scheduler("edf", {}, max_batch=0, times=times, view=lab.LaneView())


@pytest.mark.parametrize("name", KINDS)
def test_every_policy_and_its_options_can_be_extended(lab, name: str) -> None:
    @dataclass(frozen=True, slots=True)
    class Options(POLICIES[name].options):
        spare: float = option(0.001, "Time to spare.", unit=SECONDS)

    def add(self, request: Request, *, now: float) -> Reason | None:
        ids.append(request.id)
        return KINDS[name].add(self, request, now=now)

    ids: list[int] = []
    options = Options(max_queue=1, spare=2.0)
    assert plain(options)["spare"] == 2.0
    own = type("Own", (KINDS[name],), {"add": add})
    times = lab.LogNormalTimes(lab.residual)
    scheduler = own(options, max_batch=8, times=times, view=lab.LaneView())
    answers = [scheduler.add(Request(id, "m", 0.0, 9.0), now=0.0) for id in (1, 2)]
    assert (answers, ids) == ([None, Reason.QUEUE_FULL], [1, 2])

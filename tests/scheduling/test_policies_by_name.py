"""`make_scheduler`: names, options, and the sentences for mistakes."""

from __future__ import annotations

import pytest

from slacktide.scheduling import (
    POLICIES,
    Clipper,
    Clockwork,
    Edf,
    Fifo,
    Nexus,
    Orloj,
    OrlojText,
    PolicyError,
    Slack,
    make_scheduler,
    option_defaults,
)

KINDS = {
    "fifo": Fifo,
    "edf": Edf,
    "clipper": Clipper,
    "nexus": Nexus,
    "clockwork": Clockwork,
    "orloj": Orloj,
    "orloj_text": OrlojText,
    "slack": Slack,
}


def made(lab, name: str, **options: object) -> object:
    times = lab.LogNormalTimes(lab.residual)
    return make_scheduler(name, options, max_batch=8, times=times, view=lab.LaneView())


def test_every_policy_is_made_with_its_defaults_and_again_from_them(lab) -> None:
    assert list(POLICIES) == list(KINDS)
    for name, kind in KINDS.items():
        assert type(made(lab, name)) is kind
        assert type(made(lab, name, **option_defaults(name))) is kind


def test_whole_numbers_and_lists_are_taken_for_what_they_mean(lab) -> None:
    assert isinstance(made(lab, "fifo", max_delay=1, preferred=[4, 8], max_queue=None), Fifo)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("slak", {}, r"unknown scheduler 'slak'; did you mean 'slack'\?"),
        (
            "zzz",
            {},
            r"unknown scheduler 'zzz'; there are: clipper, clockwork, edf, fifo, nexus, orloj, "
            "orloj_text, slack",
        ),
        ("slack", {"kapa": 0.5}, r"no option 'kapa'; did you mean 'kappa'\?"),
        ("slack", {"kappa": "much"}, r"'kappa' of scheduler 'slack' must be of type float"),
        ("slack", {"kappa": 7.0}, r"'slack': kappa must be between 0 and 1, got 7.0"),
        ("slack", {"levels": True}, r"'levels' of scheduler 'slack' must be of type int"),
        ("edf", {"guarantee": "p50"}, r"must be one of expected, p99; got 'p50'"),
        ("edf", {"max_queue": 2.5}, r"'max_queue' of scheduler 'edf' must be of type int"),
        ("edf", {"max_queue": 0}, r"max_queue must be at least 1"),
        ("clipper", {"increase": 0.0}, r"increase must be positive, got 0.0"),
        ("clipper", {"decrease": 1.0}, r"decrease must lie between 0 and 1, got 1.0"),
        ("clipper", {"max_queue": 0}, r"max_queue must be at least 1"),
        ("nexus", {"cycles": 0.5}, r"cycles must be at least 1, got 0.5"),
        ("nexus", {"max_queue": 0}, r"max_queue must be at least 1"),
        ("clockwork", {"window": 0}, r"window must be at least 1, got 0"),
        ("clockwork", {"tolerance": -0.1}, r"tolerance must not be negative, got -0.1"),
        ("clockwork", {"max_queue": 0}, r"max_queue must be at least 1"),
        ("orloj", {"b": 0.0}, r"b must be positive and finite, got 0.0"),
        ("orloj", {"steps": [[0.5]]}, r"steps must be \(seconds after the deadline, cost\)"),
        (
            "orloj",
            {"steps": [[0.5, 1], [0.2, 1]]},
            r"ascending, got \(\(0.5, 1.0\), \(0.2, 1.0\)\)",
        ),
        ("orloj_text", {"best_effort_share": 2.0}, r"best_effort_share must be between 0 and 1"),
        ("orloj_text", {"max_queue": 0}, r"max_queue must be at least 1"),
        ("fifo", {"preferred": "48"}, r"'preferred' of scheduler 'fifo' must be a list"),
    ],
)
def test_mistakes_are_named(lab, name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        made(lab, name, **options)


def test_max_batch_must_hold_a_row(lab) -> None:
    times = lab.LogNormalTimes(lab.residual)
    with pytest.raises(PolicyError, match="max_batch"):
        make_scheduler("edf", {}, max_batch=0, times=times, view=lab.LaneView())

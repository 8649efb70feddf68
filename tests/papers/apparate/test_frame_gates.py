"""Gates on frames: what they answer again, how they are calibrated, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide_papers.apparate.frame_gates import (
    FrameGate,
    calibrated,
    gates,
    grey,
    scored,
    sources,
)

LOOKS = np.array([0.0, 0.1, 0.0, 5.0, 5.1, 5.0, 5.1, 0.0, 0.1, 0.0])
"""Ten frames of two scenes."""
ANSWERS = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0])
ONE = np.zeros(10, int)


def apart(frame: int, reference: int) -> float:
    return float(abs(LOOKS[frame] - LOOKS[reference]))


GATE = FrameGate("looks", apart)


def test_frames_that_look_alike_get_the_last_answer() -> None:
    assert sources(GATE, ONE, range(10), 1.0, 9) == [0, 0, 0, 3, 3, 3, 3, 7, 7, 7]
    assert sources(GATE, ONE, range(10), 1.0, 1) == [0, 0, 2, 3, 3, 5, 5, 7, 7, 9]
    assert sources(GATE, ONE, range(10), 0.0, 9) == list(range(10))
    apart_sessions = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    assert sources(GATE, apart_sessions, range(10), 9.0, 9) == [0] * 5 + [5] * 5
    motion = FrameGate("motion", apart, by_motion=True)
    assert sources(motion, ONE, range(10), 1.0, 9) == [0, 0, 0, 3, 3, 3, 3, 7, 7, 7]


def test_changes_are_counted_by_when_their_answer_comes() -> None:
    frames = range(10)
    run = scored(ANSWERS, ONE, frames, sources(GATE, ONE, frames, 1.0, 9))
    assert (run.closed, run.agreement, run.caught, run.delay_p95) == (0.7, 1.0, 1.0, 0.0)
    late = scored(ANSWERS, ONE, frames, [0, 0, 0, 0, 4, 4, 4, 4, 4, 4])
    assert late.agreement == pytest.approx(0.6)
    assert late.caught == 0.5  # the second change is answered nowhere
    assert late.delay_p95 == np.inf


def test_the_threshold_closes_most_within_the_loss() -> None:
    threshold = calibrated(GATE, ANSWERS, ONE, range(10), 9)
    assert 0.1 < threshold < 4.9
    loose = calibrated(GATE, ANSWERS, ONE, range(10), 9, loss=1.0)
    assert loose > 5.0
    assert calibrated(GATE, np.arange(10), ONE, range(10), 9) == 0.0


def test_signals_see_what_moves() -> None:
    rng = np.random.default_rng(1)
    pictures = rng.integers(100, 104, (6, 3, 96, 96)).astype(np.uint8)
    pictures[5, :, :24, :24] = 250
    small = grey(pictures)
    assert small.shape == (6, 32, 32)
    early = np.ones((6, 4), np.float32)
    early[3, 0] = 3.0
    doubt = np.array([0.5, 0.5, 0.1, 0.5, 0.5, 0.5])
    pixels, motion, features = gates(small, early, doubt, 0.01)
    for gate in (pixels, motion):
        assert gate.signal(5, 4) > 3.0 * gate.signal(4, 3)
    assert motion.signal(5, 4) == pytest.approx(64 / 1024, abs=0.02)
    assert features.signal(5, 4) == 0.0
    assert features.signal(3, 1) == pytest.approx(5.0 * features.signal(3, 2))

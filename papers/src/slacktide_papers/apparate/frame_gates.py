"""Baselines of remembered answers: a pixel difference, and a motion gate.

A gate gives the model's last answer again while frames look alike, as NoScope (VLDB 2017) and
Glimpse (SenSys 2015) do; else the model runs. Three signals are compared: the difference of small
grey pictures from the frame that ran last; the share of their cells that moved since the frame
before; and the uncertainty of the server about reusing the answer, by early features. Each
threshold is calibrated on frames of the stream's first tenth, and stays. Print the table with

    python -m slacktide_papers.apparate.frame_gates "chained/long_day, groups" --played 9000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits import judged_rows, reuse_uncertainty
from slacktide_papers.apparate.setting import HOUR_PART, STREAMS
from slacktide_papers.apparate.stream_features import StreamFeatures

LOSS = 0.01
SIDE = 32
"""Side of the grey pictures."""
MOVED = 4.0
"""A cell has moved if it differs by this multiple of the median difference between frames."""
CANDIDATES = 40
"""Number of thresholds that are tried."""
WITHIN = 2

Signal = Callable[[int, int], float]
"""The difference between two frames, by their numbers."""
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FrameGate:
    """A signal, and what it is compared with."""

    name: str
    signal: Signal
    by_motion: bool = False
    """Whether a frame is compared with the one before, not with the one that ran last."""
    extra: float = 0.0
    """Share of a pass that the signal takes."""


@dataclass(frozen=True, slots=True)
class GatedRun:
    """Figures of a gate on a stream."""

    closed: float
    """Share of frames that got an earlier frame's answer."""
    agreement: float
    caught: float
    """Share of changes of the model's answer after which the gate gives the new answer within two
    frames, before the next change."""
    delay_p95: float
    """95th percentile of the frames until it does, over changes whose answer lasts two further
    frames."""


def sources(
    gate: FrameGate, session: Array, frames: range, threshold: float, most: int
) -> list[int]:
    """Return the frame whose answer each of `frames` gets: itself if the gate is open. At most
    `most` frames in succession reuse one answer."""
    answered: list[int] = []
    ran = -1
    for frame in frames:
        is_next = ran >= 0 and session[frame] == session[ran] and frame - ran <= most
        reference = frame - 1 if gate.by_motion else ran
        if not (is_next and gate.signal(frame, reference) < threshold):
            ran = frame
        answered.append(ran)
    return answered


def scored(answers: Array, session: Array, frames: range, answered: Sequence[int]) -> GatedRun:
    """Score the answers that `sources` returned."""
    numbers, from_frames = np.array(frames), np.array(answered)
    right = answers[from_frames] == answers[numbers]
    classes = answers[numbers]
    after = np.arange(1, len(numbers) - WITHIN)
    of = session[numbers]
    after = after[(classes[after] != classes[after - 1]) & (of[after - 1] == of[after + WITHIN])]
    delay, lasts = np.full(len(after), np.inf), np.ones(len(after), bool)
    for later in range(WITHIN + 1):
        lasts &= classes[after + later] == classes[after]
        delay = np.where(lasts & right[after + later], np.minimum(delay, later), delay)
    ranked = np.sort(delay[lasts])
    return GatedRun(
        closed=float((from_frames != numbers).mean()),
        agreement=float(right.mean()),
        caught=float(np.isfinite(delay).mean()) if len(delay) else 1.0,
        delay_p95=float(ranked[int(np.ceil(0.95 * len(ranked))) - 1]) if len(ranked) else 0.0,
    )


def calibrated(
    gate: FrameGate, answers: Array, session: Array, frames: range, most: int, loss: float = LOSS
) -> float:
    """Return the threshold that closes the gate most often on `frames`, with at most a share `loss`
    of the answers wrong; 0 if there is none."""
    sampled = [
        gate.signal(frame, frame - 1)
        for frame in frames[1:]
        if session[frame] == session[frame - 1]
    ]
    candidates = np.unique(np.quantile(sampled, np.linspace(0.02, 1.0, CANDIDATES)))
    best, most_closed = 0.0, 0.0
    for threshold in np.append(candidates, 2.0 * candidates[-1]).tolist():
        run = scored(answers, session, frames, sources(gate, session, frames, threshold, most))
        if run.agreement >= 1.0 - loss and run.closed > most_closed:
            best, most_closed = threshold, run.closed
    return best


def grey(pictures: Array) -> NDArray[np.float32]:
    """Return grey pictures [n, SIDE, SIDE] of RGB pictures [n, 3, height, width]."""
    count, _, height, width = pictures.shape
    cells = pictures[:, :, : height // SIDE * SIDE, : width // SIDE * SIDE].mean(axis=1)
    blocks = cells.reshape(count, SIDE, height // SIDE, SIDE, width // SIDE)
    return np.asarray(blocks.mean(axis=(2, 4)), np.float32)


def gates(
    small: NDArray[np.float32], early: NDArray[np.float32], doubt: Array, early_cost: float
) -> list[FrameGate]:
    """Return the three gates over frames with these grey pictures and early features. `doubt`:
    1 − the model's probability of its answer."""
    noise = float(np.median(np.abs(np.diff(small[:1000], axis=0)))) or 1.0

    def pixels(frame: int, reference: int) -> float:
        return float(np.abs(small[frame] - small[reference]).mean())

    def motion(frame: int, reference: int) -> float:
        return float((np.abs(small[frame] - small[reference]) > MOVED * noise).mean())

    def features(frame: int, reference: int) -> float:
        return float(reuse_uncertainty(early[frame], early[reference], doubt[reference]))

    return [
        FrameGate("pixel difference", pixels),
        FrameGate("motion gate", motion, by_motion=True),
        FrameGate("early features", features, extra=early_cost),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a stream."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", choices=[name for name, s in STREAMS.items() if s.rate])
    parser.add_argument("--learnt", type=int, default=3_000, help="frames to calibrate on")
    parser.add_argument("--played", type=int, default=9_000)
    parser.add_argument("--frames", type=int, default=[2, 16], nargs="+", help="see `sources`")
    chosen = parser.parse_args(arguments)
    stream = STREAMS[chosen.stream]
    features, first = StreamFeatures(stream), max(0, stream.trained - chosen.learnt)
    stop = min(stream.trained + chosen.played, stream.inputs)
    position = features.graph.positions[0]
    pooled, logits = zip(*features.rows(first, stop), strict=True)
    early = np.concatenate([columns[0][:, : position.channels] for columns in pooled])
    answers = np.concatenate(logits).argmax(axis=1)
    doubt = judged_rows(np.concatenate(logits), answers).uncertainty
    small = np.concatenate([grey(part) for part in features.pictures(first, stop)])
    played = np.arange(first, stop) - stream.trained
    session = np.where(played < 0, -1, played // HOUR_PART if stream.is_hour else 0)
    learnt, later_frames = (
        range(stream.trained - first),
        range(stream.trained - first, len(answers)),
    )
    print("gate              frames  again  right   changes  delay p95  mean saved")
    for most in chosen.frames:
        for gate in gates(small, early, doubt, position.cost):
            threshold = calibrated(gate, answers, session, learnt, most)
            run = scored(
                answers,
                session,
                later_frames,
                sources(gate, session, later_frames, threshold, most),
            )
            saved = run.closed - gate.extra
            print(
                f"{gate.name:17} {most:6} {run.closed:6.1%} {run.agreement:6.2%}"
                f" {run.caught:9.1%} {run.delay_p95:10g} {saved:11.2f}"
            )


if __name__ == "__main__":
    main()

"""Ordered streams of texts and stories, in which topics and difficulty drift or change abruptly.

`drifting` moves slowly from one class to the next, and from easy to hard and back. `breaking` keeps
its classes and difficulty for a while, then changes both from one text to the next. Text number n
depends only on the stream's name and n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples import sentences, stories

STREAMS: Final = ("drifting", "breaking")
STREAM_TEXTS: Final = 20_000
"""Number of texts in a stream."""

_BREAK: Final = 2_500
"""Number of texts between two abrupt changes."""

_EASY: Final = np.array([0.6, 0.2, 0.1, 0.1])
_HARD: Final = np.array([0.1, 0.3, 0.3, 0.3])
"""Shares of the stories' levels at difficulty 0 (easy) and 1 (hard)."""

Texts = Iterator[tuple[NDArray[np.int64], int]]
"""Pairs of token ids, shape (tokens,), and label."""


def text_stream(name: str, start: int = 0, stop: int = STREAM_TEXTS) -> Texts:
    """Yield texts `start` to `stop` of a stream for the text encoder. Raises ValueError for a name
    that is not in STREAMS."""

    def drawn(label: int, hard: float, rng: np.random.Generator) -> NDArray[np.int64]:
        bounds = np.log((sentences.SHORTEST, sentences.LONGEST + 1))
        tokens = int(np.exp(rng.uniform(*bounds)))
        return sentences.encode(sentences.text(label, tokens, rng, 0.1 + 0.5 * hard))

    return _stream(name, range(start, stop), len(sentences.TOPICS), drawn)


def story_stream(name: str, start: int = 0, stop: int = STREAM_TEXTS) -> Texts:
    """Yield stories `start` to `stop` of a stream. Raises ValueError for a name that is not in
    STREAMS."""

    def drawn(label: int, hard: float, rng: np.random.Generator) -> NDArray[np.int64]:
        level = rng.choice(len(stories.LEVELS), p=_EASY + (_HARD - _EASY) * hard)
        return stories.encode(stories.story(label, stories.LEVELS[int(level)], rng))

    return _stream(name, range(start, stop), len(stories.PLACES), drawn)


def _stream(
    name: str,
    numbers: range,
    classes: int,
    draw: Callable[[int, float, np.random.Generator], NDArray[np.int64]],
) -> Texts:
    if name not in STREAMS:
        raise ValueError(f"no stream is called {name!r} (all: {', '.join(STREAMS)})")
    for number in numbers:
        rng = np.random.default_rng((STREAMS.index(name), number))
        shares, hard = (_drifting if name == "drifting" else _breaking)(number, classes)
        label = int(rng.choice(classes, p=shares))
        yield draw(label, hard, rng), label


def _drifting(number: int, classes: int) -> tuple[NDArray[np.float64], float]:
    """Return class shares and difficulty (0 to 1); both go through two cycles in a stream."""
    turn = 4 * np.pi * number / STREAM_TEXTS
    weights = 1.1 + np.cos(turn - 2 * np.pi * np.arange(classes) / classes)
    return weights / weights.sum(), float(0.5 - 0.5 * np.cos(turn))


def _breaking(number: int, classes: int) -> tuple[NDArray[np.float64], float]:
    rng = np.random.default_rng((len(STREAMS), number // _BREAK))
    return rng.dirichlet(np.ones(classes)), float(rng.random())

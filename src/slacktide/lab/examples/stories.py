"""Stories of who took what where, for a text classifier to which the order of words matters.

A story ends by asking where a thing is: "anna put the key in the attic . ben took the key . ben
went to the garden . where is the key ?" The label is the place, exact because we drew it. Levels
from easy to hard: in a plain story one place is named; then other things lie in other places;
then the thing is moved, and its last place counts; then a person carries it, and where they go
counts. In every level but the first, the same words in another order could change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples.sentences import Ids, encoder, pick

SHORTEST: Final = 24
LONGEST: Final = 128
"""Bounds on the tokens of a story, its leading [cls] included."""


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


PLACES: tuple[str, ...] = _words("kitchen garden office garage cellar attic hall library")
"""Class names; a label is an index into them."""

LEVELS: tuple[str, ...] = ("plain", "others", "moved", "carried")
"""Levels of difficulty, easy to hard."""
MIX: Final = (0.3, 0.25, 0.25, 0.2)
"""Default shares of the levels."""

_PEOPLE = _words("anna ben carla david emma felix")
_THINGS = _words("key letter lamp book ball coat ring map")
_DEEDS = _words("saw liked wanted forgot cleaned found")
_LINKS = ("then", "later", "after that")

VOCABULARY: tuple[str, ...] = (
    "[pad]",
    "[cls]",
    "[unk]",
    *sorted(
        {*PLACES, *_PEOPLE, *_THINGS, *_DEEDS, *_words(" ".join(_LINKS))}
        | {*_words("put the in took went to where is it was quiet met . ?")}
    ),
)
"""All tokens; an id is an index into them."""

encode = encoder(VOCABULARY, r"[a-z]+|[.?]")


def stories(
    count: int, rng: np.random.Generator, mix: Sequence[float] = MIX, longest: int = LONGEST
) -> tuple[list[Ids], NDArray[np.int64]]:
    """Draw `count` stories of different lengths: token ids (tokens,) of each, and labels (count,).
    `mix` is the share of each of LEVELS; `longest` bounds the tokens of a story."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % len(PLACES))
    return [encode(story(int(label), _level(mix, rng), rng, longest)) for label in labels], labels


def story(label: int, level: str, rng: np.random.Generator, longest: int = LONGEST) -> str:
    """Draw a story of this level whose answer is this place."""
    tokens = int(np.exp(rng.uniform(np.log(SHORTEST), np.log(longest + 1))))
    thing, *other_things = _shuffled(_THINGS, rng)
    people = _shuffled(_PEOPLE, rng)
    places = [place for place in _shuffled(PLACES, rng) if place != PLACES[label]]
    answer = PLACES[label]
    hard = LEVELS.index(level)
    # Sentences that decide the answer, in order; the last one names it.
    thread = [_put(people[0], thing, answer)]
    if hard >= 2:
        moves = 1 + int(rng.integers(3 if level == "moved" else 2))
        thread = [_put(pick(people, rng), thing, pick(places, rng)) for _ in range(moves)]
        if level == "moved":
            thread.append(_put(pick(people, rng), thing, answer))
        else:
            thread += [f"{people[0]} took the {thing} .", f"{people[0]} went to the {answer} ."]
    words = sum(len(sentence.split()) for sentence in thread) + 6
    filler: list[str] = []
    while words < tokens - 1 - 7:
        sentence = _aside(hard, other_things, people[1:], rng)
        filler.append(sentence)
        words += len(sentence.split())
    # The deciding sentences keep their order among the others.
    at = set(rng.choice(len(thread) + len(filler), len(thread), replace=False).tolist())
    deciding, fill = iter(thread), iter(filler)
    texts = [next(deciding) if i in at else next(fill) for i in range(len(thread) + len(filler))]
    return " ".join([*texts, f"where is the {thing} ?"])


def _aside(
    hard: int, other_things: Sequence[str], people: Sequence[str], rng: np.random.Generator
) -> str:
    """Draw a sentence without influence on the answer; in a hard story, it may mislead."""
    someone, thing = pick(people, rng), pick(other_things, rng)
    if hard and rng.random() < 0.6:
        place = pick(PLACES, rng)
        if hard == 3 and rng.random() < 0.4:
            return f"{someone} went to the {place} ."
        return _put(someone, thing, place)
    friend = pick(_PEOPLE, rng)
    choices = (f"{someone} {pick(_DEEDS, rng)} the {thing} .", f"{someone} met {friend} .")
    return pick((*choices, f"{pick(_LINKS, rng)} it was quiet ."), rng)


def _put(person: str, thing: str, place: str) -> str:
    return f"{person} put the {thing} in the {place} ."


def _level(mix: Sequence[float], rng: np.random.Generator) -> str:
    return LEVELS[int(rng.choice(len(LEVELS), p=np.divide(mix, np.sum(mix))))]


def _shuffled(words: Sequence[str], rng: np.random.Generator) -> list[str]:
    return [words[i] for i in rng.permutation(len(words))]

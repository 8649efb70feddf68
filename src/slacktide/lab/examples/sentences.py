"""Texts of very unequal length on eight topics, for the text encoder.

A text is a run of clauses. Most are about its topic; some, opened by "by the way", are digressions
about another. The label is the topic, exact because we drew it. Words such as "record" or "charge"
belong to several topics, so single words can mislead. Lengths are drawn evenly on a logarithmic
scale from SHORTEST to LONGEST tokens: many short texts, a few that take ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SHORTEST: Final = 8
LONGEST: Final = 256
"""Bounds on the tokens of a text, its leading [cls] included."""

PAD, CLS, UNKNOWN = 0, 1, 2
"""Ids of the tokens that are not words."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Topic:
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]


def _topic(nouns: str, verbs: str, adjectives: str) -> _Topic:
    return _Topic(tuple(nouns.split()), tuple(verbs.split()), tuple(adjectives.split()))


_TOPICS: dict[str, _Topic] = {
    "traffic": _topic(
        "car lorry junction lane signal bridge driver bus crossing tunnel ring board record",
        "overtook blocked turned queued braked crossed passed stopped",
        "congested narrow one-way rush-hour parked slow free",
    ),
    "weather": _topic(
        "storm cloud front rain wind frost sun hail thunder drizzle season degree record",
        "rained froze cleared darkened blew thawed soaked passed",
        "humid overcast freezing mild stormy sunny light",
    ),
    "food": _topic(
        "soup bread kitchen cook cheese pepper oven recipe dessert plate season pitch order",
        "baked simmered tasted seasoned fried chopped served stirred",
        "salty crisp ripe sour fresh spicy light",
    ),
    "sport": _topic(
        "goal match team referee keeper coach stadium penalty league pitch season record board",
        "scored tackled defended trained saved shot passed served",
        "offside unbeaten injured fast winning tied free",
    ),
    "music": _topic(
        "violin choir melody concert drummer chord singer organ orchestra pitch record note ring",
        "played sang tuned rehearsed hummed conducted composed shot",
        "loud acoustic off-key rhythmic solo choral slow",
    ),
    "health": _topic(
        "doctor patient clinic fever nurse vaccine symptom surgeon bandage organ charge degree",
        "healed coughed examined prescribed recovered treated rested saved",
        "sick chronic feverish sterile contagious healthy mild",
    ),
    "money": _topic(
        "bank loan account invoice market tax budget interest share charge note order bridge",
        "paid invested owed borrowed audited earned cleared saved",
        "bankrupt overdue taxable profitable wealthy cheap fresh",
    ),
    "travel": _topic(
        "train ticket hotel platform passport luggage flight island guide charge board order front",
        "boarded departed landed packed booked sailed stopped rested",
        "delayed foreign scenic remote coastal return fast",
    ),
}

TOPICS: tuple[str, ...] = tuple(_TOPICS)
"""Class names; a label is an index into them."""

_OPENINGS = ("then", "today", "yesterday", "at noon", "last week", "as usual", "in the end", "so")
_LINKS = ("near", "behind", "after", "before", "without", "beside", "because of", "instead of")
_PEOPLE = ("my sister", "the old man", "our neighbour", "they", "we", "someone", "a child", "she")
_ENDINGS = ("again", "at last", "for an hour", "with care", "in silence", "twice", "too late", "")
_PLAIN_VERBS = ("saw", "wanted", "found", "forgot", "liked", "mentioned")
_DIGRESSION = "by the way ,"
_PUNCTUATION = (",", ".")


def _vocabulary() -> tuple[str, ...]:
    phrases = [*_OPENINGS, *_LINKS, *_PEOPLE, *_ENDINGS, *_PLAIN_VERBS, _DIGRESSION, "the a and"]
    words = {word for phrase in phrases for word in phrase.split()} | set(_PUNCTUATION)
    for topic in _TOPICS.values():
        words.update(topic.nouns, topic.verbs, topic.adjectives)
    return ("[pad]", "[cls]", "[unk]", *sorted(words))


VOCABULARY: tuple[str, ...] = _vocabulary()
"""All tokens; an id is an index into them."""


def encoder(vocabulary: Sequence[str], token: str) -> Callable[[str], Ids]:
    """Return a function from a text to its token ids, [cls] first. The regular expression `token`
    matches tokens; words outside the vocabulary become [unk]."""
    numbers = {word: i for i, word in enumerate(vocabulary)}

    def encode(text: str) -> Ids:
        words = re.findall(token, text.lower())
        return np.array([CLS, *(numbers.get(word, UNKNOWN) for word in words)], dtype=np.int64)

    return encode


encode = encoder(VOCABULARY, r"[a-z][a-z-]*|[,.]")


def texts(count: int, rng: np.random.Generator) -> tuple[list[Ids], NDArray[np.int64]]:
    """Draw `count` texts of different lengths: token ids (tokens,) of each, and labels (count,)."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % len(TOPICS))
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST + 1), count)).astype(int)
    drawn = zip(labels, lengths, strict=True)
    return [encode(text(int(label), int(length), rng)) for label, length in drawn], labels


def text(label: int, tokens: int, rng: np.random.Generator, digressing: float = 0.3) -> str:
    """Draw a text of exactly `tokens` tokens, including [cls]; its last clause may be cut short. A
    share `digressing` of clauses is followed by a digression. Digressions are at most a third of
    the words before the cut, and never come first."""
    topic = _TOPICS[TOPICS[label]]
    words = _clause(topic, rng).split()
    digressed = 0
    while len(words) < tokens - 1:
        if rng.random() < digressing and digressed < len(words) // 3 - 6:
            aside_topic = TOPICS[(label + int(rng.integers(1, len(TOPICS)))) % len(TOPICS)]
            aside = f"{_DIGRESSION} {_clause(_TOPICS[aside_topic], rng)}".split()
            digressed += len(aside)
            words += aside
        else:
            words += _clause(topic, rng).split()
    return " ".join(words[: tokens - 1])


def _clause(topic: _Topic, rng: np.random.Generator) -> str:
    """Draw a clause with one to four words of the topic, ending in a full stop."""
    noun, second = pick(topic.nouns, rng), pick(topic.nouns, rng)
    adjective, verb = pick(topic.adjectives, rng), pick(topic.verbs, rng)
    link, ending = pick(_LINKS, rng), pick(_ENDINGS, rng)
    someone, plain = pick(_PEOPLE, rng), pick(_PLAIN_VERBS, rng)
    clause = pick(
        (
            f"the {adjective} {noun} {verb} {link} the {second} {ending} .",
            f"{someone} {verb} {link} the {noun} and the {adjective} {second} .",
            f"{pick(_OPENINGS, rng)} {someone} {plain} a {adjective} {noun} {ending} .",
            f"the {noun} {verb} , and {someone} {plain} the {second} {link} the {noun} .",
        ),
        rng,
    )
    return " ".join(clause.split())


def pick(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]

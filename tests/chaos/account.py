"""Whether generator and server agree on one outcome for every request, and what a run notes.

The generator's side is a `Story` for each request; the server's are the lines of its access log,
one for each answer, and its counters of outcomes by model.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slacktide.domain import Reason
from slacktide.wire.status import STATUS

GONE = frozenset(("499", "CANCELLED"))
"""Statuses of lines whose client left."""
_KNOWN = frozenset(status for wire in STATUS.values() for status in (str(wire.http), wire.grpc)) - {
    "499",
    "404",
    "NOT_FOUND",
}
"""What an answer may be: all models exist, and 499 is for logs only."""
MOST_UNREAD = 0.01
_UNREAD = "too many requests of clients that left were not even begun"
_NAMES = {str(wire.http): wire.grpc for wire in STATUS.values()}
"""From numbers to names, of which there are fewer."""
_UNCOUNTED = frozenset(("UNAVAILABLE", "NOT_FOUND"))
"""Answers that may come without a version that could count them."""


class Books:
    """What a run has noted: faults by place, and figures for its table."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._began = time.monotonic()
        self.wrong: list[tuple[str, str]] = []
        self.table: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def check(self, condition: bool, problem: str, where: str = "(server)") -> None:
        if not condition:
            self.wrong.append((where, problem))


@dataclass(slots=True)
class Story:
    """What the generator knows of a request."""

    id: str
    model: str
    manner: str
    complete: bool = False
    """Whether every byte of it was taken by a connection that was not reset."""
    answer: str | None = None
    """Status: a number over HTTP, a name over gRPC; None: it left before."""
    left: bool = False
    """Whether it meant to leave without an answer."""
    fault: str = ""
    """What was wrong with the answer, or that none came."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the access log about a request for an inference."""

    id: str
    model: str
    status: str


Outcomes = Mapping[str, Mapping[Reason, int]]
"""Counters by model and reason."""


def disagreements(
    stories: Sequence[Story], lines_of_log: Iterable[Said], outcomes: Outcomes
) -> list[tuple[str, str]]:
    """(id of the request or name of the model, what does not agree); empty if all does.

    `outcomes` holds the models that were never unloaded: a counter goes with its version.
    """
    lines: dict[str, list[Said]] = defaultdict(list)
    for line in lines_of_log:
        lines[line.id].append(line)
    stories_by_id = {story.id: story for story in stories}
    wrong = [] if unread(stories, lines) <= MOST_UNREAD * len(stories) + 1 else [("(all)", _UNREAD)]
    wrong += [(line.id, f"unknown to the generator: {line}") for line in lines.pop("", ())]
    for id in lines.keys() - stories_by_id.keys():
        wrong += [(id, f"unknown to the generator: {line}") for line in lines[id]]
    for story in stories:
        problem = _of_one(story, lines.get(story.id, []))
        if problem:
            wrong.append((story.id, problem))
    for model, counted in outcomes.items():
        mine = [story for story in stories if story.model == model]
        wrong += [(model, problem) for problem in _of_model(mine, lines, counted)]
    return wrong


def unread(stories: Sequence[Story], lines: Mapping[str, Sequence[Said]]) -> int:
    """Requests that were sent whole by clients that left, and of which the server says nothing.

    Clients share the loop by turns: one that leaves before its turn is not read.
    """
    return sum(story.complete and story.left and not lines.get(story.id) for story in stories)


def _of_one(story: Story, lines: Sequence[Said]) -> str:
    statuses = [line.status for line in lines]
    if story.fault:
        return story.fault
    if len(lines) > 1:
        return f"ended {len(lines)} times: {statuses}"
    if story.answer is None and not story.left:
        return "has no answer"
    if story.answer is not None and story.answer not in _KNOWN:
        return f"was answered {story.answer}, which is no outcome"
    if story.answer is not None and statuses != [story.answer]:
        return f"was answered {story.answer}, the server says {statuses}"
    if story.complete and not lines and not story.left:
        return "was sent whole, and the server says nothing of it"
    return ""


def _of_model(
    stories: Sequence[Story], lines: Mapping[str, Sequence[Said]], counted: Mapping[Reason, int]
) -> list[str]:
    """Each line stands for one outcome of the same status, or its client left meanwhile."""
    wrong = []
    statuses, broken = Counter[str](), 0
    for story in stories:
        for line in lines.get(story.id, ()):
            statuses[_NAMES.get(line.status, line.status)] += 1
            broken += line.status in GONE and not story.complete
    had = Counter[str]()
    for reason, count in counted.items():
        had[STATUS[reason].grpc] += count
    gone = statuses["CANCELLED"]
    for status in sorted((statuses.keys() | had.keys()) - GONE):
        least = 0 if status in _UNCOUNTED else statuses[status]
        if not least <= had[status] <= statuses[status] + gone:
            wrong.append(
                f"{statuses[status]} were answered {status}, {had[status]} had that outcome"
            )
    total, most = had.total(), statuses.total()
    uncounted = sum(statuses[status] for status in _UNCOUNTED)
    if not most - uncounted - broken <= total <= most:
        wrong.append(f"{most} requests ended ({broken} came in part), {total} had an outcome")
    return wrong

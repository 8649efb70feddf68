"""`ClassQueue`: an index of the requests with a deadline by class, for `slack` with classes.

For each signature (only equal signatures share a batch) and each m it keeps the requests of class ≤
m in (deadline, id) order, in three parallel columns: entries, deadlines, codes. The last two are
typed arrays, which NumPy reads without a step per element; inserting into one is a `memmove`, as
for a list. A *code* stands for the class, rows and penalty of a request, which determine its price.
Code 0 is an empty place in a batch.

It is an index of a `DeadlineQueue`, which reports every request that comes or goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from slacktide.domain import Request, Signature
from slacktide.profiles import RunClasses
from slacktide.scheduling.queue import Entry, cut, signature_of, split

CROWDED = 4096
"""Maximum number of codes, in addition to two per request. Beyond it, codes without a request are
dropped."""


class ClassKind(NamedTuple):
    """The properties that a code stands for."""

    of: int
    """Class."""
    rows: int
    penalty: float


EMPTY = ClassKind(0, 0, 0.0)


class ClassPrefixes:
    """Requests of one signature by class prefix: index m holds the requests of class ≤ m. Read
    only."""

    __slots__ = ("codes", "deadlines", "entries", "rows")

    def __init__(self, classes: int) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(classes)]
        self.deadlines: list[array[float]] = [array("d") for _ in range(classes)]
        self.codes: list[array[int]] = [array("q") for _ in range(classes)]
        self.rows = 0
        """Rows of all requests."""

    def __len__(self) -> int:
        return len(self.entries[-1])

    def add(self, entry: Entry, code: int, of: int) -> None:
        """Insert an entry of class `of`."""
        deadline = entry[0]
        entries, deadlines, codes = self.entries, self.deadlines, self.codes
        for m in range(of, len(entries)):
            # Bisecting the array of numbers is faster than bisecting tuples.
            at = bisect_left(deadlines[m], deadline)
            if at < len(deadlines[m]) and deadlines[m][at] == deadline:
                at = bisect_left(entries[m], entry, at)
            entries[m].insert(at, entry)
            deadlines[m].insert(at, deadline)
            codes[m].insert(at, code)
        self.rows += entry[2].rows

    def extend(self, entries: Sequence[Entry], codes: Sequence[int], of: Sequence[int]) -> None:
        """Append sorted entries that all come after the present entries."""
        for m in range(len(self.entries)):
            low = [i for i, class_ in enumerate(of) if class_ <= m]
            self.entries[m] += [entries[i] for i in low]
            self.deadlines[m].extend([entries[i][0] for i in low])
            self.codes[m].extend([codes[i] for i in low])
        self.rows += sum(entry[2].rows for entry in entries)

    def discard(self, gone: Sequence[Entry], of: Sequence[int]) -> None:
        """Remove entries (sorted, all present), given their classes."""
        for m, entries in enumerate(self.entries):
            class_entries = [entry for entry, class_ in zip(gone, of, strict=True) if class_ <= m]
            if class_entries:
                cut(entries, class_entries, self.deadlines[m], self.codes[m])
        for entry in gone:
            self.rows -= entry[2].rows


class ClassQueue:
    """Requests by signature and class prefix."""

    def __init__(self, classes: RunClasses, order: list[Entry]) -> None:
        """Index the entries of `order` (sorted), and follow its changes from then on."""
        self._order = order
        self._build(classes)

    def _build(self, classes: RunClasses) -> None:
        self.classes = classes
        """The classes that requests are sorted by. May be replaced by classes that sort requests in
        the same way."""
        self.kinds: list[ClassKind] = [EMPTY]
        """Properties by code. Read only; it grows, or is replaced by a new list."""
        self._code_by_kind: dict[ClassKind, int] = {}
        self._codes = {id: self.code_of(request) for _, id, request in self._order}
        self._groups: dict[Signature, ClassPrefixes] = {}
        for signature, entries in split(self._order, signature_of).items():
            group = self._groups[signature] = ClassPrefixes(len(classes))
            codes = [self._codes[entry[1]] for entry in entries]
            group.extend(entries, codes, [self.kinds[code].of for code in codes])

    def add(self, entry: Entry) -> None:
        """Add `entry`, before it enters the order."""
        if len(self.kinds) > CROWDED + 2 * len(self._order):
            self._build(self.classes)
        request = entry[2]
        code = self._codes[entry[1]] = self.code_of(request)
        group = self._groups.get(request.signature)
        if group is None:
            group = self._groups[request.signature] = ClassPrefixes(len(self.classes))
        group.add(entry, code, self.kinds[code].of)

    def discard(self, gone: Sequence[Entry]) -> None:
        """Remove `gone` (sorted), after they have left the order."""
        kinds, codes = self.kinds, self._codes
        for signature, members in split(gone, signature_of).items():
            group = self._groups[signature]
            of = [kinds[codes.pop(entry[1])].of for entry in members]
            if len(members) == len(group):
                del self._groups[signature]
            else:
                group.discard(members, of)

    def code_of(self, request: Request) -> int:
        """The code of `request` under the present classes."""
        kind = ClassKind(self.classes.class_of(request), request.rows, request.penalty)
        code = self._code_by_kind.get(kind)
        if code is None:
            code = self._code_by_kind[kind] = len(self.kinds)
            self.kinds.append(kind)
        return code

    def group(self, signature: Signature) -> ClassPrefixes:
        """The requests of one signature; KeyError if there is none. Read only."""
        return self._groups[signature]

    def class_of(self, request: Request) -> int:
        """The class of a queued request."""
        return self.kinds[self._codes[request.id]].of

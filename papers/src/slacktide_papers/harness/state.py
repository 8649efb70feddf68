"""`Results`: what has been measured so far, one JSON line each, so that a run can be resumed.

A line holds the fingerprint of the code that made the result, the cell and its outcome. Only lines
with the present fingerprint are used; results of other code stay in the file. A line cut off by a
crash is removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

import slacktide

SOURCE = Path(slacktide.__file__).parent
PAPERS = Path(__file__).parent.parent


class ReproduceError(ValueError):
    """A bad argument or file; the message names it and says what was expected."""


def fingerprint(paths: Iterable[str]) -> str:
    """A short hash of the code in `paths`: folders or files of the package `slacktide`, or, after
    `papers/`, of this package. An absolute path is a file or folder of another package."""
    digest = hashlib.sha256()
    for listed in sorted(paths):
        name = listed.removeprefix("papers/")
        root = SOURCE if name == listed else PAPERS
        at = root / name
        for path in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            base = root if path.is_relative_to(root) else at.parent
            digest.update(path.relative_to(base).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Results:
    """Outcomes by cell, kept in a file that results are appended to."""

    def __init__(self, path: Path, code: str, *, fresh: bool = False) -> None:
        """Read the file `path`; `fresh`: delete it first. Raises ReproduceError if that fails."""
        self._path = path
        self._code = code
        self._outcomes: dict[bytes, dict[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            path.open("ab").close()
            self._read(path.read_bytes())
        except OSError as error:
            raise ReproduceError(f"state file {path}: {error.strerror}") from None

    def _read(self, data: bytes) -> None:
        whole, _, tail = data.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
            try:
                document = orjson.loads(line)
                code, cell, result = document["code"], document["cell"], document["result"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                raise ReproduceError(
                    f"state file {self._path}, line {number}: not a result; give another --state"
                ) from None
            if code == self._code:
                self._outcomes[_key(cell)] = result
        if tail:  # a crash cut it off: the next line must not continue it
            self._path.write_bytes(whole + b"\n" if whole else b"")

    def get(self, cell: Mapping[str, object]) -> dict[str, Any] | None:
        """Outcome of `cell`; None if it has not been measured."""
        return self._outcomes.get(_key(cell))

    def add(self, cell: Mapping[str, object], result: Mapping[str, object]) -> None:
        """Keep a result, and append it to the file immediately."""
        line = {"code": self._code, "cell": dict(cell), "result": dict(result)}
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self._outcomes[_key(cell)] = dict(result)

    def __len__(self) -> int:
        """Number of results with the present fingerprint."""
        return len(self._outcomes)


def _key(cell: Mapping[str, object]) -> bytes:
    return orjson.dumps(dict(cell), option=orjson.OPT_SORT_KEYS)

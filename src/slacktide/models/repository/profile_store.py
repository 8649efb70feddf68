"""`ProfileStore`: keeps profiles next to the model, or in a state folder if the model's folder is
read-only.

    REPOSITORY/tiny_mlp/1/profile.<hardware>.json
    STATE_DIR/profiles/tiny_mlp/1/profile.<hardware>.json
    STATE_DIR/profiles/tiny_mlp-<path>/1/profile.<hardware>.json     of a single file
    REPOSITORY/depths/1/profile.<hardware>@small.json                of a variant with a file

Beside a profile are learnt corrections (profile.<hardware>.learnt.json), accuracies of variants on
any hardware (profile.accuracy.json), and learnt early exits (folder `exits`, written elsewhere).
The store does not interpret contents. It wraps a JSON object with hashes of model and hardware, and
returns it only if both match. Other files count as missing, with a reason in the log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from slacktide._files import open_file
from slacktide.models.repository.errors import RepositoryError, UnwritableError
from slacktide.models.repository.paths import (
    PathKind,
    read_bounded,
    resolve_inside,
    unreadable,
    write_atomically,
)
from slacktide.models.repository.repository import ModelDefinition

log = logging.getLogger("slacktide.profiles")

PROFILE_PREFIX = "profile."
EXITS_FOLDER = "exits"
"""Folder of learnt early exits beside a model, not part of the model."""


def model_hash(definition: ModelDefinition) -> str:
    """Return the SHA-256 of the model, in hex; for one file, as `sha256sum model.onnx` does.

    Only parsing would show which files hold external data, and the server leaves that to workers.
    So every file beside the model counts, except for profiles, hidden files and learnt early exits:
    a changed label file costs a profile, but a missed weight file would make the profile wrong. For
    a single file `net.onnx`, only files whose names begin like its own count (`net.onnx.data`,
    `net.data`). Files are streamed. Raises RepositoryError.
    """
    named, model = definition.model_path, definition.model_path.resolve()
    try:
        main_hash = hash_file(model)
        whole = hashlib.sha256(f"{main_hash}  {model.name}\n".encode("utf-8", "surrogateescape"))
        is_whole = True
        for file in dict.fromkeys((model, named)):  # a link may have its own data beside it
            home = file.parent
            beside = _namesakes(file) if definition.single_file else _files(home)
            learnt = home / EXITS_FOLDER
            for path in sorted(beside):
                if path in (model, named) or learnt in path.parents:
                    continue
                name = path.relative_to(home).as_posix()
                inside = Path(os.path.realpath(path)).is_relative_to(model.parent)
                real = resolve_inside(
                    model.parent if inside else home,
                    path,
                    where=f"{definition.where}: {name}",
                    kind=PathKind.FILE,
                )
                whole.update(f"{hash_file(real)}  {name}\n".encode("utf-8", "surrogateescape"))
                is_whole = False
        return main_hash if is_whole else whole.hexdigest()
    except OSError as error:
        raise unreadable(definition.where, error) from None


def _files(folder: Path) -> Iterator[Path]:
    """Yield every file below `folder` that may belong to a model; skip links to folders."""
    for path in folder.iterdir():
        if path.name.startswith((".", PROFILE_PREFIX)):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif not path.is_dir():
            yield path


def _namesakes(model: Path) -> Iterator[Path]:
    """Yield the files beside a model that are its data, judging by their names. Links are included
    only if they lead into the folder of the model's target."""
    real = model.resolve().parent
    for path in model.parent.iterdir():
        named = path.name.startswith((model.name, f"{model.stem}."))
        if named and path.is_file() and (not path.is_symlink() or path.resolve().parent == real):
            yield path


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex. Raises OSError."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SCHEMA = 1
"""Version of the wrapping; documents of other versions are stale."""

MAX_PROFILE_BYTES = 16 * 1024 * 1024

Kind: TypeAlias = Literal["profile", "learnt", "accuracy"]
"""A profile, its learnt corrections, or accuracies of variants."""
_CALLED: Mapping[Kind, str] = {
    "profile": "profile",
    "learnt": "record of learnt corrections",
    "accuracy": "record of accuracies",
}


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """The model and hardware of a profile."""

    model_hash: str
    """`model_hash(definition)`."""
    hardware: str
    """Fingerprint of the machine; empty for accuracies."""


class ProfileStore:
    """Finds and saves profiles. It has no state."""

    def __init__(self, state_dir: Path | None = None) -> None:
        """`state_dir`: folder for profiles of models in read-only folders."""
        self._state_dir = state_dir

    def find(
        self, definition: ModelDefinition, key: ProfileKey, kind: Kind = "profile"
    ) -> dict[str, Any] | None:
        """Return the newest document that fits `key`. If none fits, log why for each file. Never
        raises: a bad file counts as missing."""
        fitting: list[tuple[int, dict[str, Any]]] = []
        reasons: list[str] = []
        for path in self._places(definition, key.hardware, kind):
            try:
                modified = path.stat().st_mtime_ns
            except OSError:
                continue
            document = _read(path, key, kind)
            if isinstance(document, str):
                reasons.append(f"{definition.name}/{definition.version}/{path.name}: {document}")
            else:
                fitting.append((modified, document))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
        for reason in reasons:
            log.warning("%s ignored: %s", _CALLED[kind], reason)
        return None

    def holds(self, definition: ModelDefinition, hardware: str) -> bool:
        """Whether a profile exists that may fit."""
        return any(os.path.exists(path) for path in self._places(definition, hardware))

    def save(
        self,
        definition: ModelDefinition,
        key: ProfileKey,
        content: Mapping[str, Any],
        kind: Kind = "profile",
    ) -> Path:
        """Write a document atomically and return its path. Raises UnwritableError, and ValueError
        if `content` is not JSON (NaN is not) or too large."""
        wrapped = {
            "schema": SCHEMA,
            "model": definition.name,
            "version": definition.version,
            "model_sha256": key.model_hash,
            "hardware": key.hardware,
            kind: dict(content),
        }
        data = json.dumps(wrapped, indent=1, allow_nan=False).encode()
        if len(data) > MAX_PROFILE_BYTES:
            raise ValueError(f"expected at most {MAX_PROFILE_BYTES} bytes, got {len(data)}")
        reason = ""
        for path in self._places(definition, key.hardware, kind):
            try:
                # Do not recreate a missing version folder: the model, or an upload, was deleted.
                if definition.single_file or path.parent != definition.folder:
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno is not None else str(error)
            else:
                return path
        advice = "" if self._state_dir is not None else "; name a state folder (--state-dir)"
        raise UnwritableError(
            f"{definition.name}/{definition.version}",
            f"{_CALLED[kind]} cannot be saved: {reason}{advice}",
        )

    def exits_folder(self, definition: ModelDefinition) -> Path:
        """Return the folder of learnt early exits: beside the model if writable, else in the state
        folder, to which newer files beside the model are copied. Blocks; never raises."""
        beside = definition.folder / EXITS_FOLDER
        writable = os.access(beside if beside.is_dir() else definition.folder, os.W_OK)
        if writable or self._state_dir is None:
            return beside
        copy = self._state_dir / "profiles" / definition.name / definition.version / EXITS_FOLDER
        try:
            if beside.is_dir() and (not copy.is_dir() or _newest(beside) > _newest(copy)):
                shutil.copytree(beside, copy, dirs_exist_ok=True)
        except OSError as error:
            log.warning("%s/%s cannot be copied: %s", definition.name, EXITS_FOLDER, error.strerror)
            return beside
        return copy

    def _places(
        self, definition: ModelDefinition, hardware: str, kind: Kind = "profile"
    ) -> Iterator[Path]:
        """Yield the possible paths of a document, best first."""
        digest = hashlib.sha256(hardware.encode()).hexdigest()[:16]
        # Sizes of one file share its profile, but each has its own corrections.
        suffix = f"@{definition.variant}" if definition.variant else ""
        if kind == "accuracy":
            name = f"{PROFILE_PREFIX}accuracy.json"
        elif kind == "learnt":
            name = f"{PROFILE_PREFIX}{digest}{suffix}.learnt.json"
        else:
            name = f"{PROFILE_PREFIX}{digest}{suffix if definition.files else ''}.json"
        yield definition.folder / name
        if self._state_dir is not None:
            yield self._state_dir / "profiles" / definition.name / definition.version / name


def _newest(folder: Path) -> int:
    """Return the time of the newest file in a folder, nanoseconds. Raises OSError."""
    return max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0)


def _read(path: Path, key: ProfileKey, kind: Kind) -> dict[str, Any] | str:
    """Return the content of a file, or why it is ignored."""
    try:
        wrapped = json.loads(read_bounded(path, MAX_PROFILE_BYTES, where=""))
    except RepositoryError as error:
        return str(error)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(wrapped, dict) or wrapped.get("schema") != SCHEMA:
        return f"expected a document of schema {SCHEMA}"
    if wrapped.get("model_sha256") != key.model_hash:
        return "was measured on another model"
    if wrapped.get("hardware") != key.hardware:
        return "was measured on other hardware"
    content = wrapped.get(kind)
    return content if isinstance(content, dict) else f"holds no {_CALLED[kind]}"

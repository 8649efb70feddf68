"""Where measured profiles lie: beside the model, or under a state folder if that is read-only.

    REPOSITORY/tiny_mlp/1/profile.<hardware>.json
    STATE_DIR/profiles/tiny_mlp/1/profile.<hardware>.json
    STATE_DIR/profiles/tiny_mlp-<path>/1/profile.<hardware>.json     of a model that is one file
    REPOSITORY/depths/1/profile.<hardware>@small.json                of a variant with a file

What predictions have learnt since lies beside it, as profile.<hardware>.learnt.json, how accurate
variants are, on any hardware, as profile.accuracy.json, and what early exits have learnt in the
folder `exits`, which others write. The store knows nothing of what they say. It wraps a JSON object
with what it was measured for, and gives it back only to the same model on the same hardware;
anything else is missing, with a reason for the log.
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
"""Beside a model: what was learnt for its early exits, which is no part of it either."""


def model_hash(definition: ModelDefinition) -> str:
    """SHA-256 of the model, in hex: what `sha256sum model.onnx` prints, if it is one file.

    Which files hold a model's external data is known only by parsing it, which the server leaves to
    its workers. So every other file beside the model counts as part of it (profiles, hidden files
    and what was learnt for early exits aside): a changed label file costs a profile, a missed
    weight file would cost the truth.
    Beside a model that is one file, `net.onnx`, only those count whose names begin like its own
    (`net.onnx.data`, `net.data`). Files are streamed. Raises RepositoryError.
    """
    named, model = definition.model_path, definition.model_path.resolve()
    try:
        main_hash = hash_file(model)
        whole = hashlib.sha256(f"{main_hash}  {model.name}\n".encode("utf-8", "surrogateescape"))
        is_whole = True
        for file in dict.fromkeys((model, named)):  # a link may have data of its own beside it
            home = file.parent
            beside = _namesakes(file) if definition.alone else _files(home)
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
    """Every file below `folder` that may belong to a model; links to folders are not followed."""
    for path in folder.iterdir():
        if path.name.startswith((".", PROFILE_PREFIX)):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif not path.is_dir():
            yield path


def _namesakes(model: Path) -> Iterator[Path]:
    """Files beside a model whose names say that they are its data; links only beside a link, and
    into the folder of its target."""
    real = model.resolve().parent
    for path in model.parent.iterdir():
        named = path.name.startswith((model.name, f"{model.stem}."))
        if named and path.is_file() and (not path.is_symlink() or path.resolve().parent == real):
            yield path


def hash_file(path: Path) -> str:
    """SHA-256 in hex. Raises OSError."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SCHEMA = 1
"""Version of the wrapping; a document of another one is stale."""

MAX_PROFILE_BYTES = 16 * 1024 * 1024


Kind: TypeAlias = Literal["profile", "learnt", "accuracy"]
"""A profile, what predictions have learnt since it was taken, or how accurate variants are."""
_CALLED: Mapping[Kind, str] = {
    "profile": "profile",
    "learnt": "record of what was learnt",
    "accuracy": "record of accuracies",
}


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile was measured for."""

    model_hash: str
    """`model_hash(definition)`."""
    hardware: str
    """The fingerprint of the machine, as the profiles package writes it; empty for accuracies."""


class ProfileStore:
    """Finds and saves profiles. Holds no state."""

    def __init__(self, state_dir: Path | None = None) -> None:
        """`state_dir`: where profiles go whose model's folder cannot be written."""
        self._state_dir = state_dir

    def find(
        self, definition: ModelDefinition, key: ProfileKey, kind: Kind = "profile"
    ) -> dict[str, Any] | None:
        """The newest one that fits `key`. Never raises: a bad file is a missing one. If none fits,
        the log says of each file that was found what is wrong with it."""
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
        """Whether there is a profile that may fit."""
        return any(os.path.exists(path) for path in self._places(definition, hardware))

    def save(
        self,
        definition: ModelDefinition,
        key: ProfileKey,
        content: Mapping[str, Any],
        kind: Kind = "profile",
    ) -> Path:
        """Write a profile, or what was learnt, whole or not at all; returns where. Raises
        UnwritableError, or ValueError if `content` is not JSON (NaN is not) or too large."""
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
            raise ValueError(f"{len(data)} bytes; expected {MAX_PROFILE_BYTES} at most")
        reason = ""
        for path in self._places(definition, key.hardware, kind):
            try:
                # A version's folder that is gone stays gone: the model was deleted, or an upload.
                if definition.alone or path.parent != definition.folder:
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno is not None else str(error)
            else:
                return path
        advice = "" if self._state_dir is not None else "; name a state folder (--state-dir)"
        raise UnwritableError(
            f"{definition.name}/{definition.version}",
            f"a {_CALLED[kind]} cannot be saved: {reason}{advice}",
        )

    def exits_folder(self, definition: ModelDefinition) -> Path:
        """Where what is learnt for early exits lies, or is to be written: beside the model if that
        can be written, else under the state folder, with what lay beside the model if that is
        newer. Blocks; never raises."""
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
        """Where one may lie, the best place first."""
        digest = hashlib.sha256(hardware.encode()).hexdigest()[:16]
        # Variants that are sizes of one file have its profile, and learn each for itself.
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
    """When a file of the folder was written last, nanoseconds. Raises OSError."""
    return max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0)


def _read(path: Path, key: ProfileKey, kind: Kind) -> dict[str, Any] | str:
    """What a file holds, or why it does not count."""
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

"""Turns names into paths. Everything that opens a file of a repository goes through here.

Names of models and files start with a letter or digit and continue with letters, digits, `.`, `_`
and `-`, at most 128 characters; so `..`, hidden files and separators cannot occur. Versions are
whole numbers from 1, decimal, without leading zeros, below 2^63 as in Triton.

A name may lead to a symbolic link if its target is inside the repository and is a regular file or
a folder, not a device, pipe or socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from slacktide._files import open_file
from slacktide.domain.suggestions import shown
from slacktide.models.repository.errors import (
    FolderError,
    InvalidNameError,
    NotFoundError,
    OutsideRepositoryError,
    RepositoryError,
    UnreadableError,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_MAX_VERSION = 2**63 - 1

NAME_RULE = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128"
VERSION_RULE = "a whole number from 1, without leading zeros"


class PathKind(Enum):
    FILE = "a regular file"
    FOLDER = "a folder"


_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)


def local_path(text: str | Path) -> Path:
    """Return `text` as a path. Raises ValueError for an empty text, which would be the working
    folder, and for a URL unless a file has this name."""
    if text == "":
        raise ValueError("expected a path, got an empty string")
    match = _URL.match(str(text))
    if match is not None and not os.path.lexists(text):
        is_file = match["scheme"].lower() == "file"
        path = unquote(urlsplit(str(text)).path)
        advice = f"; write {path}" if is_file else "; copy the files to a local folder first"
        raise ValueError(f"expected a path, not a URL, got {shown(str(text))}{advice}")
    return Path(text)


def is_name(text: str) -> bool:
    """Whether `text` may name a model or a file."""
    return _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Whether `text` may name a version."""
    return _VERSION.fullmatch(text) is not None and int(text) <= _MAX_VERSION


def check_name(text: str, *, kind: str = "model name", where: str = "") -> str:
    """Return `text`. Raises InvalidNameError if it cannot name a model or file."""
    if not is_name(text):
        raise InvalidNameError(where, f"{kind} {shown(text)}: expected {NAME_RULE}")
    return text


def check_version(text: str, *, where: str = "") -> str:
    """Return `text`. Raises InvalidNameError if it cannot name a version."""
    if not is_version(text):
        raise InvalidNameError(where, f"version {shown(text)}: expected {VERSION_RULE}")
    return text


def resolve(root: Path, *names: str, kind: PathKind) -> Path:
    """Return the real path of `root/names…`, links followed, inside `root`, of this kind.

    Raises InvalidNameError, NotFoundError, OutsideRepositoryError, FolderError (another kind) or
    UnreadableError. Whoever may write to the repository can change the path afterwards, but also
    the model itself.
    """
    where = "/".join(name if is_name(name) else shown(name) for name in names)
    for name in names:
        check_name(name, kind="name", where=where)
    return resolve_inside(root, root.joinpath(*names), where=where, kind=kind)


def resolve_inside(root: Path, path: Path, *, where: str, kind: PathKind) -> Path:
    """Return the real path of `path`, inside `root`, of this kind. `where` names it in errors."""
    try:
        home = root.resolve(strict=True)
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(where, f"expected {kind.value}, found none") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise unreadable(where, error) from None
    if not real.is_relative_to(home):
        raise OutsideRepositoryError(where, "leads out of the repository through a symbolic link")
    is_kind = stat.S_ISREG(mode) if kind is PathKind.FILE else stat.S_ISDIR(mode)
    if not is_kind:
        raise FolderError(where, f"expected {kind.value}")
    return real


def read_bounded(path: Path, limit: int, *, where: str) -> bytes:
    """Read a small file. Raises UnreadableError, and FolderError if it exceeds `limit`."""
    try:
        with open_file(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(where, error) from None
    if len(data) > limit:
        raise FolderError(where, f"expected at most {limit} bytes")
    return data


def unreadable(where: str, error: Exception) -> RepositoryError:
    """Return the error for a failed read, with the system's reason but without its path."""
    reason = error.strerror if isinstance(error, OSError) else None
    return UnreadableError(where, f"cannot be read: {reason or 'a loop of symbolic links'}")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers always find, and a crash leaves, either the old or the new
    content: write beside it, flush to disk, then rename. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp's 0o600 would hide it from other users
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The identity of a model's content: what a stored profile is keyed by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from slacktide.models.repository.definition import ModelDefinition
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.paths import Kind, resolve_inside, unreadable

PROFILE_PREFIX = "profile."
_CHUNK = 1024 * 1024


def model_hash(definition: ModelDefinition) -> str:
    """SHA-256 of the model, in hex: what `sha256sum model.onnx` prints, if it is one file.

    Which files hold a model's external data is known only by parsing it, which the server leaves to
    its workers. So every other file beside the model counts as part of it (profiles and hidden
    files aside): a changed label file costs a profile, a missed weight file would cost the truth.
    Files are streamed. Raises RepositoryError.
    """
    model = definition.model_path
    home = definition.data_root
    try:
        others = sorted(path for path in _files(home) if path != model)
        own = _digest(model)
        if not others:
            return own
        whole = hashlib.sha256(f"{own}  {model.name}\n".encode())
        for path in others:
            name = path.relative_to(home).as_posix()
            real = resolve_inside(home, path, where=f"{definition.where}: {name}", kind=Kind.FILE)
            whole.update(f"{_digest(real)}  {name}\n".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()
    except RepositoryError:
        raise
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


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

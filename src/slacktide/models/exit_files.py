"""Where the ramps of a model lie, and how they get there: the folder that
`ProfileStore.exits_folder` names, with the files of `exits/manifest.py`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from slacktide.executors.ports import ExitSource
from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import MANIFEST, ExitManifest, read_manifest
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.paths import (
    PathKind,
    read_bounded,
    resolve_inside,
    write_atomically,
)
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import ModelDefinition

LABELS = "labels.txt"
"""In a model's folder: names of its classes, one a line."""
_MOST_LABEL_BYTES = 4 << 20


def exit_source(definition: ModelDefinition, folder: Path) -> ExitSource:
    """What is stated of a model's early exits; nothing is, where it states none."""
    stated = definition.settings.exits
    padding = definition.settings.pads
    padded = {} if padding is None else padding.inputs
    mask = next((name for name, tensor in padded.items() if tensor.mask), "")
    labels = _label_counts(definition)
    if stated is None:
        return ExitSource(folder, mask=mask, labels=labels)
    where = stated.positions
    named = (stated.primary or "", mask, where.add, where.forbid, stated.output or "")
    return ExitSource(folder, *named, labels)


def _label_counts(definition: ModelDefinition) -> tuple[int, ...]:
    """Lines of the files of labels in the model's folder: of LABELS, and those that config.pbtxt
    names. One that cannot be read counts for nothing."""
    home, counts = definition.folder.parent, []
    stated = (tensor.get("label_filename") for tensor in definition.config.get("output", []))
    for name in dict.fromkeys([LABELS, *filter(None, stated)]):
        with contextlib.suppress(RepositoryError):
            path = resolve_inside(home, home / name, where=name, kind=PathKind.FILE)
            lines = read_bounded(path, _MOST_LABEL_BYTES, where=name).splitlines()
            counts.append(sum(bool(line.strip()) for line in lines))
    return tuple(counts)


def find_ramps(definition: ModelDefinition, folder: Path) -> ExitManifest | None:
    """What was learnt for these very files; None if nothing was yet. Blocks. Raises ExitError for
    files that cannot be used, and RepositoryError for a model that cannot be read."""
    if not (folder / MANIFEST).exists():
        return None
    return read_manifest(folder, model_sha256=model_hash(definition))


def manifest_stamp(folder: Path) -> tuple[int, int] | None:
    """What tells one manifest written there from the next; None if there is none. Blocks."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def save_ramps(definition: ModelDefinition, folder: Path, manifest: ExitManifest) -> None:
    """Write both files, so that a reader finds the ramps of before or these. The weights of the
    revision before stay, for a worker that has read their manifest just now. Blocks. Raises
    ExitError."""
    document, weights = manifest.encode()
    try:
        # A version's folder that is gone stays gone: the model was deleted, or an upload.
        beside = folder.parent == definition.folder and not definition.alone
        folder.mkdir(parents=not beside, exist_ok=True)
        current_files = {manifest.weights_file, _weights_before(folder)}
        write_atomically(folder / manifest.weights_file, weights)
        write_atomically(folder / MANIFEST, document)
        for weights_file in folder.glob("ramps.*.npz"):
            if weights_file.name not in current_files:
                with contextlib.suppress(OSError):
                    weights_file.unlink()
    except OSError as error:
        where = f"{definition.name}/{definition.version}"
        advice = "if that folder is read-only, name a state folder (--state-dir)"
        raise ExitError(f"{where}: ramps cannot be saved: {error.strerror}; {advice}") from None


def _weights_before(folder: Path) -> str:
    """The file of weights that is in use; empty if none is."""
    try:
        return read_manifest(folder).weights_file
    except ExitError:
        return ""

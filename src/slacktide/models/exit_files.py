"""Finds and saves the ramps of a model, in the folder that `ProfileStore.exits_folder` names.

`exits/manifest.py` defines the files. `rare.npz` holds the pooled features of rows of rare classes
that the operator has supplied, so that ramps learnt later are trained and judged on them too.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np

from slacktide.executors.ports import ExitSource
from slacktide.exits.archives import read_npz
from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import MANIFEST, ExitManifest, read_manifest
from slacktide.exits.training import PooledRows
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.paths import (
    PathKind,
    read_bounded,
    resolve_inside,
    write_atomically,
)
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import ModelDefinition

RARE = "rare.npz"
MOST_RARE_BYTES = 1 << 28
LABELS = "labels.txt"
"""File in a model's folder with the names of its classes, one per line."""
_MOST_LABEL_BYTES = 4 << 20


def exit_source(definition: ModelDefinition, folder: Path) -> ExitSource:
    """Return the early exits that a model states; if none, only folder, mask and labels."""
    stated = definition.settings.exits
    padding = definition.settings.pads
    padded = {} if padding is None else padding.inputs
    mask = next((name for name, tensor in padded.items() if tensor.mask), "")
    labels = _label_counts(definition) + ((len(definition.labels),) if definition.labels else ())
    if stated is None:
        return ExitSource(folder, mask=mask, labels=labels)
    where, decode = stated.positions, definition.settings.decode
    output = stated.output or ""
    if not output and decode is not None and decode.name == "softmax":
        output = next(iter(decode.outputs), "")
    named = (stated.primary or "", mask, where.add, where.forbid, output)
    return ExitSource(folder, *named, labels)


def _label_counts(definition: ModelDefinition) -> tuple[int, ...]:
    """Return the number of lines in each label file of the model's folder: LABELS, and the files
    that config.pbtxt names. Unreadable files are ignored."""
    home, counts = definition.folder.parent, []
    stated = (tensor.get("label_filename") for tensor in definition.config.get("output", []))
    for name in dict.fromkeys([LABELS, *filter(None, stated)]):
        with contextlib.suppress(RepositoryError):
            path = resolve_inside(home, home / name, where=name, kind=PathKind.FILE)
            lines = read_bounded(path, _MOST_LABEL_BYTES, where=name).splitlines()
            counts.append(sum(bool(line.strip()) for line in lines))
    return tuple(counts)


def find_ramps(definition: ModelDefinition, folder: Path) -> ExitManifest | None:
    """Return the ramps learnt for these model files; None if there are none. Blocks. Raises
    ExitError for unusable files, and RepositoryError for an unreadable model."""
    if not (folder / MANIFEST).exists():
        return None
    return read_manifest(folder, model_sha256=model_hash(definition))


def manifest_stamp(folder: Path) -> tuple[int, int] | None:
    """Return a stamp that changes with each written manifest; None if there is none. Blocks."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def save_ramps(definition: ModelDefinition, folder: Path, manifest: ExitManifest) -> None:
    """Write both files so that a reader finds either the old ramps or the new ones. The old weights
    file stays, for workers that have just read the old manifest. Blocks. Raises ExitError."""
    document, weights = manifest.encode()
    try:
        # Do not recreate a missing version folder: the model, or an upload, was deleted.
        beside = folder.parent == definition.folder and not definition.single_file
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
        advice = "if the folder is read-only, name a state folder (--state-dir)"
        raise ExitError(f"{where}: ramps cannot be saved: {error.strerror}; {advice}") from None


def find_rare(folder: Path, model_sha256: str) -> PooledRows | None:
    """Return the supplied rows of rare classes; None if there are none for these model files.
    Blocks. Raises ExitError for an unusable file."""
    if not (folder / RARE).exists():
        return None
    try:
        arrays = read_npz(folder / RARE, most_bytes=MOST_RARE_BYTES, where=RARE)
    except ValueError as error:
        raise ExitError(str(error)) from None
    if str(arrays.pop("model", "")) != model_sha256:
        return None
    parts = [arrays.get("logits"), *(arrays.get(f"features.{at}") for at in range(len(arrays) - 1))]
    rows = [part for part in parts if part is not None and part.dtype == np.float32]
    sizes = {len(part) for part in rows if part.ndim == 2}
    if len(rows) < max(2, len(parts)) or len(sizes) != 1 or any(part.ndim != 2 for part in rows):
        raise ExitError(
            f"{RARE}: expected float32 arrays [rows, features] with the same number of rows"
        )
    return PooledRows(tuple(rows[1:]), rows[0]).finite()


def save_rare(folder: Path, rows: PooledRows, model_sha256: str) -> None:
    """Write the supplied rows of rare classes. Blocks. Raises ExitError."""
    packed = io.BytesIO()
    arrays = {f"features.{at}": part for at, part in enumerate(rows.features)}
    np.savez(packed, allow_pickle=False, model=model_sha256, logits=rows.logits, **arrays)
    if packed.tell() > MOST_RARE_BYTES:
        most = MOST_RARE_BYTES * len(rows) // packed.tell()
        raise ExitError(f"rare rows: expected at most {most} of this model, got {len(rows)}")
    try:
        write_atomically(folder / RARE, packed.getvalue())
    except OSError as error:
        raise ExitError(f"{RARE} cannot be saved: {error.strerror}") from None


def _weights_before(folder: Path) -> str:
    """Return the weights file in use; empty if there is none."""
    try:
        return read_manifest(folder).weights_file
    except ExitError:
        return ""

"""Builds model folders from load calls with `file:<version>/<name>` parameters and a `config`.

Used only if the server allows uploads. Each model gets its own repository, so that the same code
reads it under the same rules. A model is staged completely or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slacktide.domain.suggestions import shown
from slacktide.models.repository.errors import UnwritableError, UploadError
from slacktide.models.repository.paths import check_name, check_version, sync_folder
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.triton.messages import CONFIG_FILE, parse_json, to_text
from slacktide.models.repository.triton.translate import translate

Bytes = bytes | bytearray | memoryview

FILE_PREFIX = "file:"


@dataclass(frozen=True, slots=True)
class StagedModel:
    """An uploaded model, in a repository of its own."""

    name: str
    root: Path

    def repository(self) -> Repository:
        return Repository(self.root)

    def discard(self) -> None:
        """Delete the files. Never raises."""
        shutil.rmtree(self.root, ignore_errors=True)


class Staging:
    """A folder in which uploads become repositories."""

    def __init__(self, folder: Path, *, most_bytes: int = 1 << 30, most_files: int = 64) -> None:
        """`folder` is created when needed and used by this server only. The limits are per call."""
        self._folder = folder
        self._most_bytes = most_bytes
        self._most_files = most_files

    def stage(
        self, model: str, files: Mapping[str, Bytes], config: str | None = None
    ) -> StagedModel:
        """Build `model` from `files` (keys `file:<version>/<name>`) and `config` (JSON), without
        checking the model. Raises UploadError, InvalidNameError, ModelConfigError or
        UnwritableError, and then leaves nothing behind."""
        check_name(model)
        placed = self._placed(files)
        text = None
        if config is not None:
            where = f"{model}: parameter 'config'"
            plain = parse_json(config, where=where)
            translate(plain, model=model, where=where)
            text = to_text(plain)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=self._folder))
            try:
                _write(building / model, placed, text)
                root = building.with_name(building.name.removeprefix(".building-"))
                os.rename(building, root)
                sync_folder(self._folder)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
        except OSError as error:
            raise UnwritableError(model, f"cannot be staged: {error.strerror}") from None
        return StagedModel(model, root)

    def _placed(self, files: Mapping[str, Bytes]) -> dict[tuple[str, str], Bytes]:
        """Check the files, and return them by (version, name)."""
        if not files:
            raise UploadError("", f"expected at least one '{FILE_PREFIX}<version>/<name>'")
        if len(files) > self._most_files:
            raise UploadError("", f"expected at most {self._most_files} files, got {len(files)}")
        total = sum(memoryview(data).nbytes for data in files.values())
        if total > (most := self._most_bytes):
            raise UploadError("", f"expected at most {most} bytes in total, got {total}")
        return {_place(key): data for key, data in files.items()}


def _place(key: str) -> tuple[str, str]:
    """Return (version, name) of a parameter's key. Raises UploadError and InvalidNameError."""
    version, slash, name = key.removeprefix(FILE_PREFIX).partition("/")
    if not (key.startswith(FILE_PREFIX) and slash):
        raise UploadError("", f"expected '{FILE_PREFIX}<version>/<name>', got {shown(key)}")
    where = f"parameter {shown(key)}"
    return check_version(version, where=where), check_name(name, kind="file name", where=where)


def _write(folder: Path, placed: Mapping[tuple[str, str], Bytes], config: bytes | None) -> None:
    folder.mkdir()
    for (version, name), data in placed.items():
        folder.joinpath(version).mkdir(exist_ok=True)
        folder.joinpath(version, name).write_bytes(data)
    if config is not None:
        folder.joinpath(CONFIG_FILE).write_bytes(config)


def split_parameters(parameters: Mapping[str, object]) -> tuple[dict[str, Bytes], str | None]:
    """Return the files and the `config` of a load call's parameters. Raises UploadError for other
    parameters and for values of the wrong type."""
    files: dict[str, Bytes] = {}
    config: str | None = None
    for key, value in parameters.items():
        if key == "config":
            if not isinstance(value, str):
                raise UploadError("", "parameter 'config': expected a JSON string")
            config = value
        elif key.startswith(FILE_PREFIX):
            if not isinstance(value, Bytes):
                raise UploadError("", f"parameter {shown(key)}: expected bytes")
            files[key] = value
        else:
            raise UploadError(
                "", f"unknown parameter {shown(key)}; expected 'config' or '{FILE_PREFIX}…'"
            )
    return files, config

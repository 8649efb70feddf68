"""`SingleModel`: one ONNX file as a repository; `open_repository` opens either kind."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slacktide.domain.suggestions import shown
from slacktide.models.repository.errors import (
    FolderError,
    InvalidNameError,
    NotFoundError,
    RepositoryError,
)
from slacktide.models.repository.paths import (
    NAME_RULE,
    PathKind,
    check_name,
    is_name,
    resolve_inside,
)
from slacktide.models.repository.repository import Repository


class SingleModel(Repository):
    """One ONNX file as a repository of one model, version 1, with default settings. The model has
    the file's name without ending, with `_` for invalid characters. External data may be beside the
    file."""

    _single_file = True

    def __init__(self, file: Path, state_dir: Path) -> None:
        """`state_dir`: folder of the profile, which is stored by the file's name and path. Raises
        InvalidNameError if the file's name has no letter or digit."""
        super().__init__(file.parent)
        self.file = file.absolute()
        self.model = file.stem
        if not is_name(file.stem):
            self.model = re.sub(r"[^A-Za-z0-9._-]+", "_", file.stem).strip("._-")[:128]
        if not is_name(self.model):
            expected = f"expected a file name that is valid as a model's name: {NAME_RULE}"
            raise InvalidNameError("", f"{expected}; got {shown(file.stem)}")
        path = hashlib.sha256(os.fsencode(self.file)).hexdigest()[:16]
        self.profile_folder = state_dir / "profiles" / f"{self.model}-{path}" / "1"

    def names(self) -> tuple[str, ...]:
        return (self.model,)

    def _model_folder(self, model: str) -> Path:
        if check_name(model) != self.model:
            raise self._unknown(model)
        return self.root

    def _optional(self, *file: Any) -> Mapping[str, Any]:
        return {}  # files beside it are not the model's

    def _has(self, name: str, file: str) -> bool:
        return False

    def _versions(self, model: str, folder: Path) -> Iterator[str]:
        yield "1"

    def _place(
        self, model: str, version: str, file: str, *, stated: bool = False
    ) -> tuple[Path, Path]:
        if version != "1":
            raise NotFoundError(model, f"expected version 1, got {version}")
        home, where = self.file.resolve().parent, self.file.name
        resolve_inside(home, self.file, where=where, kind=PathKind.FILE)
        return self.profile_folder, self.file.parent.resolve() / where


def open_repository(path: Path, state_dir: Path | None = None) -> Repository:
    """Open a folder of models, or one ONNX file. `state_dir`: see `SingleModel`; by default the
    user's state folder (XDG Base Directory Specification). Raises RepositoryError with `path`,
    which is meant for the server's owner, not for clients."""
    try:
        if path.suffix.lower() == ".onnx" and not os.path.lexists(path):
            raise NotFoundError("", "no such file")
        if not os.path.isfile(path):
            repository = Repository(path)
            repository.names()
            return repository
        if path.suffix.lower() != ".onnx":
            raise FolderError("", "expected a folder of models, or one file that ends in .onnx")
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        # Users without a home folder have no state folder either.
        return SingleModel(path, state_dir or Path("/", home, "slacktide"))
    except RepositoryError as error:
        raise type(error)(str(path), *error.problems) from None

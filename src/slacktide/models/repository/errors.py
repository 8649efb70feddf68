"""Errors of repositories: mistakes in files and calls (RepositoryMistakeError), and failures of the
machine (RepositoryAccessError).

Messages name a file relative to the repository, the field, and the expected value. They have no
absolute paths, so that front ends can show them to clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from slacktide.domain.suggestions import escaped


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a file."""

    field: str
    """Dotted path of the key, such as `limits.queue`; empty for the whole file."""
    message: str
    """The expected value and the actual value."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class RepositoryError(Exception):
    """Base of all errors of a repository. `str()` is a sentence for clients."""

    def __init__(self, where: str, *problems: Problem | str) -> None:
        """`where`: a file or folder relative to the repository; empty for the repository."""
        self.where = where
        self.problems = tuple(Problem("", p) if isinstance(p, str) else p for p in problems)
        prefix = f"{where}: " if where else ""
        text = "; ".join(f"{prefix}{problem}" for problem in self.problems)
        # Names and values from files must not break lines of the log.
        text = escaped(text)
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in text))


@contextlib.contextmanager
def as_repository_error(where: str) -> Iterator[None]:
    """Turn unexpected exceptions of a parser into a RepositoryError, so that a bug in our code or a
    library fails one model only. The cause is kept for the log."""
    try:
        yield
    except RepositoryError:
        raise
    except Exception as error:
        raise RepositoryError(
            where, f"cannot be read: unexpected {type(error).__name__}"
        ) from error


class RepositoryMistakeError(RepositoryError):
    """A mistake in the files or in a call."""


class FolderError(RepositoryMistakeError):
    """A folder is not the folder of a repository or a model."""


class InvalidNameError(RepositoryMistakeError):
    """A model, version or file name does not match its pattern."""


class NotFoundError(RepositoryMistakeError):
    """No such model, version or file."""


class OutsideRepositoryError(RepositoryMistakeError):
    """A symbolic link, or a reference in a model, leads out of the repository."""


class SettingsError(RepositoryMistakeError):
    """slacktide.yaml has unknown or invalid settings."""


class ModelConfigError(RepositoryMistakeError):
    """config.pbtxt, or the `config` of a load call, has unknown or invalid fields."""


class RefusedFieldError(ModelConfigError):
    """A known field that is not supported and would change the model's meaning."""


class ModelFileError(RepositoryMistakeError):
    """The ONNX file is broken or cannot be served."""


class InterfaceMismatchError(RepositoryMistakeError):
    """The files and the model disagree about inputs, outputs or batching."""


class UploadError(RepositoryMistakeError):
    """The files of a load call are malformed or too large."""


class RepositoryAccessError(RepositoryError):
    """A failure of the machine: permissions, a full or broken disk."""


class UnreadableError(RepositoryAccessError):
    """A file or folder cannot be read."""


class UnwritableError(RepositoryAccessError):
    """A file cannot be written."""

"""What can be wrong with a repository: one tree, split by the first question of its reader.
Do the files, or a call, say something wrong (RepositoryMistakeError), or is the machine in the way
(RepositoryAccessError)?

Messages name a file relative to the repository, the field, and what was expected. They hold no
absolute path, so that a front end may show them to a client as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from slacktide.domain.suggestions import escaped


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in one file."""

    field: str
    """Dotted path of the key, e.g. `limits.queue`; empty where the file as a whole is meant."""
    message: str
    """What was expected, and what was found."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class RepositoryError(Exception):
    """Anything wrong with a repository. `str()` is a sentence fit for a client."""

    def __init__(self, where: str, *problems: Problem | str) -> None:
        """`where`: a file or folder relative to the repository; empty for the repository."""
        self.where = where
        self.problems = tuple(Problem("", p) if isinstance(p, str) else p for p in problems)
        prefix = f"{where}: " if where else ""
        text = "; ".join(f"{prefix}{problem}" for problem in self.problems)
        # Names and values come from files: what they hold may not break a line of the log.
        text = escaped(text)
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in text))


@contextlib.contextmanager
def only_fails(where: str) -> Iterator[None]:
    """A net around what reads one file: whatever else its parser raises is a RepositoryError. For
    unforeseen faults, in our code or a library's: they shall fail one model, and not the others
    beside it. The cause is kept for the log."""
    try:
        yield
    except RepositoryError:
        raise
    except Exception as error:
        raise RepositoryError(
            where, f"cannot be read: unexpected {type(error).__name__}"
        ) from error


class RepositoryMistakeError(RepositoryError):
    """The files, or a call, say something wrong."""


class FolderError(RepositoryMistakeError):
    """The folders are not those of a repository, or not a model's."""


class InvalidNameError(RepositoryMistakeError):
    """A model, version or file name breaks its pattern."""


class NotFoundError(RepositoryMistakeError):
    """No such model, version or file."""


class OutsideRepositoryError(RepositoryMistakeError):
    """A symbolic link, or a reference in a model, leads out of the repository."""


class SettingsError(RepositoryMistakeError):
    """slacktide.yaml says something unknown or impossible."""


class ModelConfigError(RepositoryMistakeError):
    """config.pbtxt, or the `config` of a load call, says something unknown or impossible."""


class RefusedFieldError(ModelConfigError):
    """A known field that would change what the model means, and that is not supported."""


class ModelFileError(RepositoryMistakeError):
    """The ONNX file is broken or cannot be served."""


class InterfaceMismatchError(RepositoryMistakeError):
    """What the files say of inputs, outputs or batching is not what the model has."""


class UploadError(RepositoryMistakeError):
    """The files of a load call are malformed or too large."""


class RepositoryAccessError(RepositoryError):
    """The machine refuses: rights, a full or broken disk."""


class UnreadableError(RepositoryAccessError):
    """A file or folder cannot be read."""


class UnwritableError(RepositoryAccessError):
    """A file cannot be written."""

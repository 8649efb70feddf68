"""`ModelDefinition`: one version of one model, with everything its files say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slacktide.models.repository.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """One version that is to be served. The files have been found and read, the model not run."""

    name: str
    version: str
    folder: Path
    """The version's folder, links followed."""
    model_path: Path
    """The model file, links followed; inside the repository."""
    settings: ModelSettings
    """In effect: slacktide.yaml over config.pbtxt over the server's defaults."""
    config: Mapping[str, Any]
    """config.pbtxt (or the load call's `config`) as stated, plain; empty if there is none."""
    warnings: tuple[str, ...] = ()
    """Sentences for the log, once per model."""

    @property
    def where(self) -> str:
        """The model file relative to the repository, for messages."""
        return f"{self.name}/{self.version}/{self.settings.file}"

    @property
    def data_root(self) -> Path:
        """The folder that the model's external data may not leave: where the file really is."""
        return self.model_path.parent

    @property
    def warmup_shapes(self) -> dict[str, tuple[int, ...]]:
        """Typical shapes by input, without the batch axis; only inputs that state one."""
        inputs = self.settings.inputs
        return {name: one.shape for name, one in inputs.items() if one.shape is not None}

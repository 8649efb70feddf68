"""Builders of small repositories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository.repository import ModelDefinition, Repository

Builder = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def add_model(root: Path) -> Builder:
    """add_model("a", versions=("1",), yaml="slo: 1s", pbtxt="…", data=b"…") -> its folder."""

    def add(
        name: str,
        *,
        versions: tuple[str, ...] = ("1",),
        yaml: str | None = None,
        pbtxt: str | None = None,
        data: bytes = b"model",
        file: str = "model.onnx",
    ) -> Path:
        folder = root / name
        folder.mkdir(exist_ok=True)
        for version in versions:
            (folder / version).mkdir()
            (folder / version / file).write_bytes(data)
        if yaml is not None:
            (folder / "slacktide.yaml").write_text(yaml)
        if pbtxt is not None:
            (folder / "config.pbtxt").write_text(pbtxt)
        return folder

    return add


@pytest.fixture
def define(root: Path, add_model: Builder) -> Callable[..., ModelDefinition]:
    """define(yaml=…, pbtxt=…) -> the definition of model "m", version 1, with such files."""

    def build(**files: object) -> ModelDefinition:
        add_model("m", **files)
        return Repository(root).read("m")[0]

    return build

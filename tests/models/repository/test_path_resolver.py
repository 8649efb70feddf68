"""Names, links and kinds: nothing gets out of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slacktide.models.repository.errors import (
    FolderError,
    InvalidNameError,
    NotFoundError,
    OutsideRepositoryError,
    RepositoryError,
    UnreadableError,
)
from slacktide.models.repository.paths import (
    PathKind,
    check_version,
    is_name,
    is_version,
    local_path,
    resolve,
)


@pytest.mark.parametrize("name", ["a", "0", "tiny_mlp", "a.b-c_d", "A" * 128, "model.onnx"])
def test_good_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".git", "_a", "-a", "a/b", "a\\b", "a b", "a\n", "a\0", "ä", "A" * 129, "١"],
)
def test_bad_names(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("version", ["1", "10", "9223372036854775807"])
def test_good_versions(version: str) -> None:
    assert is_version(version)


@pytest.mark.parametrize(
    "version", ["", "0", "01", "-1", "+1", "1.0", "1\n", "one", "9223372036854775808", "²", "١"]
)
def test_bad_versions(version: str) -> None:
    assert not is_version(version)
    with pytest.raises(InvalidNameError, match="a whole number from 1"):
        check_version(version)


def test_a_file_and_a_folder_are_found_by_name(root: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    file = root / "m" / "1" / "model.onnx"
    file.write_bytes(b"x")
    assert resolve(root, "m", "1", kind=PathKind.FOLDER) == file.parent
    assert resolve(root, "m", "1", "model.onnx", kind=PathKind.FILE) == file


def test_a_link_may_point_inside_but_not_outside(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_text("x")
    (root / "real").write_text("x")
    (root / "inside").symlink_to("real")
    (root / "absolute").symlink_to(outside)
    (root / "relative").symlink_to("../secret")
    (root / "twice").symlink_to("relative")
    (root / "sneaky").symlink_to("../repository/real")
    assert resolve(root, "inside", kind=PathKind.FILE) == root / "real"
    assert resolve(root, "sneaky", kind=PathKind.FILE) == root / "real"
    for name in ("absolute", "relative", "twice"):
        with pytest.raises(OutsideRepositoryError, match=rf"^{name}: leads out"):
            resolve(root, name, kind=PathKind.FILE)


def test_a_folder_whose_name_the_root_begins_with_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "repository2").mkdir()
    (root / "m").symlink_to(tmp_path / "repository2")
    with pytest.raises(OutsideRepositoryError):
        resolve(root, "m", kind=PathKind.FOLDER)


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (root / "m").mkdir()
    (tmp_path / "link").symlink_to(root)
    assert resolve(tmp_path / "link", "m", kind=PathKind.FOLDER) == root / "m"


def test_other_kinds_of_files_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "file").write_text("x")
    for name in ("pipe", "folder"):
        with pytest.raises(FolderError, match="expected a regular file"):
            resolve(root, name, kind=PathKind.FILE)
    for name in ("pipe", "file"):
        with pytest.raises(FolderError, match="expected a folder"):
            resolve(root, name, kind=PathKind.FOLDER)


def test_missing_files_and_loops_are_refused(root: Path) -> None:
    (root / "dangling").symlink_to("nothing")
    (root / "loop").symlink_to("loop")
    (root / "file").write_text("x")
    for names in (("missing",), ("dangling",), ("file", "below")):
        with pytest.raises(NotFoundError):
            resolve(root, *names, kind=PathKind.FILE)
    with pytest.raises((UnreadableError, NotFoundError)):
        resolve(root, "loop", kind=PathKind.FILE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(
                ["..", ".", "m", "1", "model.onnx", "/etc", "a/../..", "\0", "~", "out"]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(PathKind),
)
@example(["..", "secret"], PathKind.FILE)
@example(["m", "..", "..", "secret"], PathKind.FILE)
@example(["out"], PathKind.FILE)
def test_no_names_lead_outside(root: Path, names: list[str], kind: PathKind) -> None:
    (root / "m" / "1").mkdir(parents=True, exist_ok=True)
    (root / "m" / "1" / "model.onnx").write_bytes(b"x")
    root.with_name("secret").write_text("x")
    if not (root / "out").is_symlink():
        (root / "out").symlink_to("../secret")
    path, message = root, ""
    try:
        path = resolve(root, *names, kind=kind)
    except RepositoryError as error:
        message = str(error)
    assert path.is_relative_to(root)
    assert str(root) not in message
    assert message.isprintable()


def test_a_folder_called_like_a_url_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="not a URL"):
        local_path("s3://models")
    (tmp_path / "s3:" / "models").mkdir(parents=True)
    assert local_path("s3://models").is_dir()
    assert local_path(Path("c:")) == Path("c:")

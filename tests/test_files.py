"""Pipes, sockets, devices and folders in place of files are refused at once."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from slacktide._files import open_file
from slacktide.cli.serve import values_from_file
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.file_kinds import misplaced_kind
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.sample_rows import read_archive, read_requests
from slacktide.exits.manifest import read_manifest
from slacktide.frontends.common.security import TlsFiles, read_token
from slacktide.models.labelled.reading import read_labels
from slacktide.models.repository.paths import read_bounded
from slacktide.models.repository.profile_store import ProfileKey, ProfileStore, hash_file
from slacktide.models.repository.repository import Repository


def soon(work: Callable[[], object]) -> BaseException | None:
    """Do it in a thread; what it raised. It may not block."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for a writer"
    return raised[0] if raised else None


def named_pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def named_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (named_pipe, "a named pipe"),
        (named_socket, "a socket"),
        (lambda path: path.mkdir() or path, "a folder"),
        (lambda path: path.symlink_to("/dev/zero") or path, "a device"),
    ],
)
def test_only_regular_files_are_opened(
    tmp_path: Path, make: Callable[[Path], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    for path in (make(Path("odd")), Path("link")):
        if path.name == "link":
            path.symlink_to("odd")
        error = soon(lambda path=path: open_file(path))
        assert isinstance(error, OSError)
        assert error.strerror == f"expected a file, got {kind}"


def test_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_file(tmp_path / name) as file:
            assert file.read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


NOTHING = ModelInterface((), (), 0)
READERS: dict[str, Callable[[Path], object]] = {
    "settings": lambda folder: read_bounded(named_pipe(folder / "s.yaml"), 10, where="s"),
    "hash": lambda folder: hash_file(named_pipe(folder / "model")),
    "manifest": lambda folder: read_manifest(
        named_pipe(folder / "manifest.json").parent, model_sha256=""
    ),
    "token": lambda folder: read_token(named_pipe(folder / "token")),
    "certificate": lambda folder: TlsFiles(named_pipe(folder / "c"), folder / "c").read(),
    "model": lambda folder: OnnxFile(named_pipe(folder / "m.onnx"), folder),
    "kind": lambda folder: misplaced_kind(named_pipe(folder / "m.onnx")),
    "labels": lambda folder: read_labels(named_pipe(folder / "labels.jsonl").parent),
    "samples": lambda folder: read_archive(named_pipe(folder / "rows.npz"), NOTHING),
    "requests": lambda folder: [*read_requests(named_pipe(folder / "rows.npz"), NOTHING)],
    "config": lambda folder: values_from_file(
        typer.Context(typer.main.get_command(typer.Typer())), named_pipe(folder / "config")
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_writer(name: str, tmp_path: Path) -> None:
    error = soon(lambda: READERS[name](tmp_path))
    assert (error is None) == (name == "kind")


def test_a_repository_full_of_pipes_is_read_with_reasons(tmp_path: Path) -> None:
    for path in ("a/slacktide.yaml", "b/config.pbtxt", "c/1/model.onnx", "d/pipeline.yaml", "e"):
        named_pipe(tmp_path / path)
    (tmp_path / "c/1/profile.json").write_text("")

    def scan() -> None:
        problems = {listed.name: listed.problem for listed in Repository(tmp_path).scan()}
        for name in "abcd":
            if name in problems:
                assert problems[name] is not None, name

    assert soon(scan) is None


def test_profiles_that_are_pipes_are_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"")
    (definition,) = Repository(tmp_path).read("m")
    store, key = ProfileStore(), ProfileKey("h", "this machine")
    for kind in ("profile", "learnt", "accuracy"):
        named_pipe(next(iter(store._places(definition, key.hardware, kind))))  # type: ignore[arg-type]
        assert soon(lambda kind=kind: store.find(definition, key, kind)) is None
        assert store.find(definition, key, kind) is None  # type: ignore[arg-type]

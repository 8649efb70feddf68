"""Labels of classes, from files of their owners and from models' metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.decoders.labels import find_labels, names_in, parse_labels
from slacktide.executors.onnx_runtime import ModelError


def test_a_file_has_a_label_in_each_line() -> None:
    assert parse_labels("\ufeffcat\r\nwhite dog \nBär\n\n".encode()) == ("cat", "white dog", "Bär")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a name in each line, found none"),
        (b"cat\n\ndog\n", r"^line 2: expected a name of at most 256 characters, got ''"),
        (b"cat\ndog\ncat\n", r"^line 3: 'cat' is already the name in line 1"),
        (b"cat\n\xff\n", "expected UTF-8"),
        (b"a" * 300, "^line 1: expected a name"),
    ],
)
def test_files_that_are_no_labels_say_why(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_labels(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_labels_or_refused(data: bytes) -> None:
    try:
        labels = parse_labels(data)
    except ValueError:
        return
    assert len({*labels}) == len(labels) > 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{0: 'person', 1: \"a bicycle\"}", ("person", "a bicycle")),
        ("['x', 'y']", ("x", "y")),
        ("{1: 'x'}", ()),
        ("{'0': 'x'}", ()),
        ("__import__('os')", ()),
        ("(" * 100_000, ()),
        ("{0: 1}", ()),
        ("'" + "x" * 300_000 + "'", ()),
        ("", ()),
    ],
)
def test_names_in_metadata_are_read_as_literals_alone(text: str, names: tuple[str, ...]) -> None:
    assert names_in({"names": text}) == names


def test_the_owners_labels_go_before_those_in_the_model(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    metadata = {"names": "{0: 'cat', 1: 'dog'}", "task": "detect"}
    assert find_labels(None, metadata, decodes=True) == ("cat", "dog")
    path.write_text("Katze\nHund\n")
    assert find_labels(path, metadata, decodes=True) == ("Katze", "Hund")
    path.write_text("dog\ncat\n")
    with pytest.raises(
        ModelError, match=r"^labels: expected 'cat' as class 0, .*got 'dog', its cl"
    ):
        find_labels(path, metadata, decodes=True)
    path.write_text("cat\n")
    with pytest.raises(ModelError, match=r"^labels: expected 2 names, as the file has, got 1"):
        find_labels(path, metadata, decodes=True)
    path.unlink()
    with pytest.raises(ModelError, match=r"^labels: the file cannot be read: No such file"):
        find_labels(path, metadata, decodes=False)


def test_heads_of_tasks_that_nothing_decodes_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"^decode\.as: expected a model of task 'detect', .*'pose'"
    ):
        find_labels(None, {"task": "pose"}, decodes=True)
    assert find_labels(None, {"task": "pose"}, decodes=False) == ()


def test_a_classifier_has_as_many_labels_as_classes(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n")
    scores = TensorSpec("y", Datatype.FP32, (-1, 3))
    with pytest.raises(
        ModelError, match=r"^labels: expected 3 names, one for .* output 'y', got 2"
    ):
        find_labels(path, {}, [scores], decodes=False)
    for other in ((-1, 1), (-1, 2), (-1, -1), (-1, 3, 4)):
        find_labels(path, {}, [TensorSpec("y", Datatype.FP32, other)], decodes=False)
    assert find_labels(path, {}, [scores, scores], decodes=False) == ("cat", "dog")

"""A folder of model folders, read: versions, broken neighbours, and slips of the hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository import repository as reading
from slacktide.models.repository.errors import (
    FolderError,
    InvalidNameError,
    ModelConfigError,
    NotFoundError,
    OutsideRepositoryError,
    RefusedFieldError,
    RepositoryError,
    RepositoryMistakeError,
    SettingsError,
    UnreadableError,
)
from slacktide.models.repository.repository import ModelDefinition, Repository

Builder = Callable[..., Path]


def test_the_highest_version_is_served(root: Path, add_model: Builder) -> None:
    folder = add_model("m", versions=("1", "9", "10"))
    (definition,) = Repository(root).read("m")
    assert (definition.name, definition.version) == ("m", "10")
    assert definition.folder == folder / "10"
    assert definition.model_path == folder / "10" / "model.onnx"
    assert definition.data_root == folder / "10"
    assert definition.where == "m/10/model.onnx"
    assert definition.config == {}
    assert definition.warnings == ()


def test_several_versions(root: Path, add_model: Builder) -> None:
    add_model("m", versions=("1", "2", "3"), yaml="versions: [3, 1]")
    repository = Repository(root)
    assert [d.version for d in repository.read("m")] == ["1", "3"]


def test_a_version_asked_for_must_exist(root: Path, add_model: Builder) -> None:
    add_model("m", yaml="versions: [7]")
    with pytest.raises(NotFoundError, match=r"^m/7: expected a folder, found none"):
        Repository(root).read("m")


def test_folders_that_are_no_version_are_passed_over(root: Path, add_model: Builder) -> None:
    folder = add_model("m")
    for name in ("02", "configs", "warmup", "0", "-1"):
        (folder / name).mkdir()
    (folder / "3").write_text("a file")
    assert [d.version for d in Repository(root).read("m")] == ["1"]


def test_the_file_may_have_another_name(root: Path, add_model: Builder) -> None:
    add_model("a", file="net.onnx", yaml="file: net.onnx")
    add_model("b", file="net.onnx", pbtxt='default_model_filename: "net.onnx"')
    add_model("c", file="net.onnx")
    a, b, c = Repository(root).scan()
    assert a.definitions[0].model_path.name == b.definitions[0].model_path.name == "net.onnx"
    assert "c/1/model.onnx: no such file; rename 'net.onnx'" in str(c.problem)


def test_a_broken_model_does_not_stop_the_others(root: Path, add_model: Builder) -> None:
    add_model("good")
    add_model("bad_yaml", yaml="sloo: 1s")
    add_model("bad_pbtxt", pbtxt="max_batch_sise: 1")
    add_model("refused", pbtxt="sequence_batching {}")
    add_model("bad name")
    add_model("no_version", versions=())
    (root / "empty").mkdir()
    (root / "dangling").symlink_to("nothing")
    (root / "outside").symlink_to("..")
    listed = {model.name: model for model in Repository(root).scan()}
    assert [d.version for d in listed.pop("good").definitions] == ["1"]
    assert {name: type(model.problem) for name, model in listed.items()} == {
        "bad_yaml": SettingsError,
        "bad_pbtxt": ModelConfigError,
        "refused": RefusedFieldError,
        "bad name": InvalidNameError,
        "no_version": NotFoundError,
        "empty": NotFoundError,
        "dangling": NotFoundError,
        "outside": OutsideRepositoryError,
    }
    assert all(model.definitions == () for model in listed.values())


def test_hidden_folders_and_files_are_no_models(root: Path, add_model: Builder) -> None:
    add_model("m")
    for name in (".git", "_scratch"):
        (root / name).mkdir()
    (root / "README.md").write_text("x")
    assert Repository(root).names() == ("m",)


def test_an_unknown_model_gets_the_nearest_name(root: Path, add_model: Builder) -> None:
    add_model("tiny_mlp")
    with pytest.raises(NotFoundError, match="no model 'tiny_mpl'; did you mean 'tiny_mlp'"):
        Repository(root).read("tiny_mpl")


@pytest.mark.parametrize("name", ["..", "../m", "a/b", "", "/etc"])
def test_a_name_cannot_be_a_path(root: Path, name: str) -> None:
    with pytest.raises(InvalidNameError):
        Repository(root).read(name)


def test_an_empty_repository_is_fine(root: Path) -> None:
    repository = Repository(root)
    assert repository.scan() == ()
    expected = "no models: expected folders such as NAME/1/model.onnx"
    assert repository.without_models() == expected
    (root / "net.onnx").write_bytes(b"x")
    advice = "; move 'net.onnx' there, or serve only that file"
    assert repository.without_models() == expected + advice


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        (
            "m/1/net.onnx",
            "m/1/model.onnx: no such file; rename 'net.onnx' to model.onnx, "
            "or state 'file: net.onnx' in m/slacktide.yaml",
        ),
        ("m/1/my net.onnx", "…such file; rename 'my net.onnx' to model.onnx"),
        ("m/1/net.pt", "m/1/model.onnx: expected a regular file, found none"),
        ("m/model.onnx", "…found none; move 'model.onnx' to m/1/model.onnx"),
        ("m/net.onnx", "…found none; move 'net.onnx' to m/1/model.onnx"),
        ("m/net.pt", "m: expected a version folder such as '1', found none"),
    ],
)
def test_a_file_in_the_wrong_place_gets_advice(root: Path, file: str, advice: str) -> None:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_bytes(b"x")
    with pytest.raises(NotFoundError) as refused:
        Repository(root).read("m")
    message = str(refused.value)
    assert message.endswith(advice[1:]) if advice[0] == "…" else message == advice


def test_a_model_served_in_place_of_its_repository_is_told_where_that_is(root: Path) -> None:
    (root / "1").mkdir()
    (root / "1" / "net.onnx").write_bytes(b"x")
    with pytest.raises(NotFoundError, match="if 1 is a version folder, serve the folder that"):
        Repository(root).read("1")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            "model.onnx",
            "it holds model.onnx): move it to NAME/1/model.onnx, or name the file itself",
        ),
        ("1/model.onnx", "it holds 1): serve its parent folder"),
        ("slacktide.yaml", "it holds slacktide.yaml): serve its parent folder"),
        ("config.pbtxt", "it holds config.pbtxt): serve its parent folder"),
    ],
)
def test_a_models_folder_given_as_a_repository(root: Path, make: str, message: str) -> None:
    file = root / make
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    with pytest.raises(FolderError) as caught:
        Repository(root).scan()
    assert message in str(caught.value)


def test_a_repository_that_is_not_there(root: Path) -> None:
    with pytest.raises(NotFoundError, match="expected a repository folder, found none"):
        Repository(root / "nothing").scan()
    (root / "file").write_text("x")
    with pytest.raises(FolderError, match="expected a repository folder, got a file"):
        Repository(root / "file").scan()


def test_links_inside_the_repository(root: Path, add_model: Builder) -> None:
    folder = add_model("real")
    (root / "alias").symlink_to("real")
    (folder / "2").mkdir()
    (folder / "2" / "model.onnx").symlink_to("../1/model.onnx")
    (definition,) = Repository(root).read("alias")
    assert definition.folder == folder / "2"
    assert definition.model_path == folder / "2" / "model.onnx"
    assert definition.data_root == folder / "1"


@pytest.mark.parametrize("file", ["1/model.onnx", "slacktide.yaml", "config.pbtxt"])
def test_a_file_may_not_be_a_link_to_the_outside(
    root: Path, tmp_path: Path, add_model: Builder, file: str
) -> None:
    folder = add_model("m", yaml="", pbtxt="")
    (tmp_path / "secret").write_text("slo: 1s")
    (folder / file).unlink()
    (folder / file).symlink_to(tmp_path / "secret")
    with pytest.raises(OutsideRepositoryError, match=f"m/{file}"):
        Repository(root).read("m")


def test_an_oversized_settings_file(root: Path, add_model: Builder) -> None:
    add_model("m", yaml="#" * 70_000)
    with pytest.raises(RepositoryMistakeError, match=r"m/slacktide\.yaml: expected at most 65536"):
        Repository(root).read("m")


def test_a_file_without_rights(
    root: Path, add_model: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's refusal is simulated: rights do not bind the user root."""
    add_model("m", yaml="slo: 1s")

    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableError, match="Permission denied"):
        Repository(root).read("m")


def test_a_load_calls_config_stands_in_for_the_file(root: Path, add_model: Builder) -> None:
    add_model("m", versions=("1", "2"), pbtxt="max_batch_size: 4", yaml="slo: 1s")
    repository = Repository(root)
    override = '{"max_batch_size": 8, "version_policy": {"specific": {"versions": [1]}}}'
    (definition,) = repository.read("m", config_override=override)
    assert (definition.version, definition.settings.max_batch) == ("1", 8)
    assert definition.settings.slo == 1.0
    with pytest.raises(RefusedFieldError, match=r"^m: parameter 'config': sequence_batching"):
        repository.read("m", config_override='{"sequence_batching": {}}')


def test_no_error_tells_where_the_repository_is(root: Path, add_model: Builder) -> None:
    add_model("a", yaml="slo: 1")
    add_model("b", file="other")
    add_model("c", versions=())
    add_model("d", yaml="[")
    (root / "e").symlink_to("/")
    problems = [model.problem for model in Repository(root).scan()]
    assert len(problems) == 5
    for problem in problems:
        assert isinstance(problem, RepositoryError)
        assert str(root.parent) not in str(problem)


@pytest.mark.parametrize(
    "fault", [OverflowError("x"), MemoryError(), RecursionError(), KeyError(3)]
)
@pytest.mark.parametrize(
    ("parser", "where"),
    [("parse_settings", "a/slacktide.yaml"), ("parse_text", "a/config.pbtxt"), ("translate", "a")],
)
def test_a_fault_nobody_foresaw_costs_one_model_and_names_its_file(
    root: Path,
    add_model: Builder,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    parser: str,
    where: str,
) -> None:
    add_model("a", yaml="slo: 1s", pbtxt="max_batch_size: 3")
    add_model("b")
    sound = getattr(reading, parser)

    def parse(data: object, **words: str) -> object:
        if words["where"].startswith("a/"):
            raise fault
        return sound(data, **words)

    monkeypatch.setattr(reading, parser, parse)
    broken, good = Repository(root).scan()
    assert str(broken.problem) == f"{where}: cannot be read: unexpected {type(fault).__name__}"
    assert broken.problem is not None
    assert broken.problem.__cause__ is fault
    assert good.problem is None


@pytest.mark.parametrize(
    ("files", "origin"),
    [
        ({"pbtxt": "# KIND_GPU\ninstance_group {\n kind: KIND_GPU }"}, "config.pbtxt, line 3"),
        ({"pbtxt": "instance_group [ {\n count: 1\n gpus: [2] } ]"}, "config.pbtxt, line 3"),
        ({"pbtxt": "instance_group { kind: KIND_CPU }"}, ""),
        ({"yaml": "slo: 1s\ndevice: cuda:1"}, "slacktide.yaml, line 2"),
        ({"yaml": "providers:\n- tensorrt"}, "slacktide.yaml, line 1"),
        ({"yaml": "device: cpu", "pbtxt": "instance_group { kind: KIND_GPU }"}, ""),
    ],
)
def test_the_place_that_asks_for_a_gpu_is_remembered(
    define: Callable[..., ModelDefinition], files: dict[str, str], origin: str
) -> None:
    origin_shown = define(**files).device_origin
    assert origin_shown.startswith(f"m/{origin}, ") if origin else origin_shown == ""


def test_a_gpu_that_a_load_call_asks_for_is_the_calls(root: Path, add_model: Builder) -> None:
    add_model("m", pbtxt="instance_group { kind: KIND_CPU }")
    config = '{"instance_group": [{"kind": "KIND_GPU"}]}'
    (definition,) = Repository(root).read("m", config_override=config)
    assert definition.device_origin == "m: parameter 'config', instance_group"


@pytest.mark.parametrize(
    "file",
    [
        "lost+found/",
        "@eaDir/SYNO@.fileindexdb/journal",
        "$RECYCLE.BIN/desktop.ini",
        "notes/README.md",
        "docs/images/graph.png",
        "m2/notes.txt",
    ],
)
def test_a_folder_without_any_sign_of_a_model_is_none(
    root: Path, add_model: Builder, file: str
) -> None:
    add_model("m")
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    if file.endswith("/"):
        (root / file).mkdir()
    else:
        (root / file).write_bytes(b"x")
    assert Repository(root).names() == ("m",)


@pytest.mark.parametrize(
    "file",
    ["empty/", "m2/model.onnx", "m2/config.pbtxt", "m2/v1/net.onnx", "m2/slacktide.yml"],
)
def test_a_folder_with_a_sign_of_a_model_is_listed_with_its_problem(root: Path, file: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"")
    (listed,) = Repository(root).scan()
    assert listed.problem is not None


def test_a_badly_named_folder_that_holds_a_model_is_listed_with_its_problem(
    root: Path, add_model: Builder
) -> None:
    add_model("my model")
    (listed,) = Repository(root).scan()
    assert "expected letters, digits" in str(listed.problem)

"""`early_exit` in slacktide.yaml: what may stand there, and what is told of what may not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.domain import ExitMode
from slacktide.domain.options import OptionError
from slacktide.exits.own_exits import OwnExit
from slacktide.models.repository.early_exit import EarlyExitSettings, PositionSettings
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.profile_store import ProfileStore, model_hash
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.settings_file import parse_settings, validate_settings
from slacktide.planning.exits import StatedExits


def load(text: str) -> ModelSettings:
    return validate_settings(parse_settings(text.encode(), where="m"), where="m")


def test_a_percentage_is_short_for_the_loss() -> None:
    assert load("").early_exit is None
    assert load("early_exit: {}").early_exit == EarlyExitSettings()
    assert load("early_exit: 0.5%").early_exit == EarlyExitSettings(accuracy_loss="0.5%")


def test_every_key_is_read() -> None:
    text = """
        early_exit:
          accuracy_loss: 2%
          ramp_budget: 10%
          mode: shrink
          feedback: 25%
          primary: image
          positions: {add: [fc1], forbid: [pool1, pool2]}
    """
    assert load(text).early_exit == EarlyExitSettings(
        accuracy_loss="2%",
        ramp_budget="10%",
        mode="shrink",
        feedback="25%",
        primary="image",
        positions=PositionSettings(add=("fc1",), forbid=("pool1", "pool2")),
    )


def test_answers_are_remembered_if_that_is_stated() -> None:
    stated = [load(f"early_exit: {{{text}}}").early_exit for text in ("", "remember: {}")]
    frames = [exits.stated.remember_frames for exits in stated if exits is not None]
    assert frames == [0, 2]
    exits = load("early_exit: {remember: {frames: 9, age: 200ms}}").early_exit
    assert exits is not None
    assert (exits.stated.remember_frames, exits.stated.remember_s) == (9, 0.2)


JUDGED = "{outputs: {y: early/y}, quality: early/q, threshold: 0.2}"


def test_exits_of_the_model_itself_are_planned_as_stated(
    define: Callable[..., ModelDefinition],
) -> None:
    text = f"early_exit: {{mode: shrink, judged: [{JUDGED}, {JUDGED.replace('0.2', '0')}]}}"
    definition = define(yaml=text)
    assert definition.own_exits == (OwnExit({"y": "early/y"}, "early/q"),) * 2
    assert definition.outputs == {"y": "y"}
    stated = definition.settings.exits
    assert stated is not None
    assert stated.stated == StatedExits(
        mode=ExitMode.SHRINK, ramps=(0, 1), thresholds=(0.2, 0.0), learnt=False
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("early_exit: 0%", "early_exit.accuracy_loss: expected greater than 0"),
        ("early_exit: 100%", "early_exit.accuracy_loss: expected less than 1"),
        ("early_exit: {accuracy_loss: 0.01}", "early_exit.accuracy_loss: expected a percentage"),
        ("early_exit: true", "early_exit.accuracy_loss: expected a percentage, such as '2%', got"),
        (
            "early_exit: 1",
            "early_exit.accuracy_loss: expected a percentage, such as '2%', got 1; d",
        ),
        ("early_exit: 1", "did you mean '1%'?"),
        ("early_exit: '2.5'", "did you mean '2.5%'?"),
        ("early_exit: 0.01", "did you mean '1%'?"),
        ("early_exit: {ramp_budget: 5}", "early_exit.ramp_budget: expected a percentage, such as"),
        ("early_exit: [1%]", "early_exit: expected keys and values, got ['1%']"),
        ("early_exit: {loss: 1%}", "early_exit.loss: unknown key"),
        ("early_exit: {ramp_budget: 0}", "early_exit.ramp_budget: expected greater than 0"),
        ("early_exit: {feedback: 0%}", "early_exit.feedback: expected greater than 0"),
        ("early_exit: {mode: schrink}", "early_exit.mode: expected 'auto', 'release' or 'shrink'"),
        ("early_exit: {remember: {frames: 0}}", "early_exit.remember.frames: expected greater"),
        ("early_exit: {remember: {age: 0s}}", "early_exit.remember.age: expected greater than 0"),
        ("early_exit: {remember: {age: -1s}}", "early_exit.remember.age: expected"),
        ("early_exit: {remember: yes}", "early_exit.remember: expected"),
        (
            f"early_exit: {{remember: {{}}, judged: [{JUDGED}]}}",
            "early_exit.remember: not allowed with 'judged'",
        ),
        ("early_exit: {primary: 3}", "early_exit.primary: expected a string, got 3"),
        ("early_exit: {positions: {add: fc1}}", "early_exit.positions.add: expected a list"),
        ("early_exit: {positions: {add: ['']}}", "early_exit.positions.add[0]: expected"),
        (
            "early_exit: {positions: {add: [a, b], forbid: [b]}}",
            "early_exit.positions.forbid: 'b' is also in 'add'",
        ),
        (
            f"early_exit: {{accuracy_loss: 1%, judged: [{JUDGED}]}}",
            "early_exit.accuracy_loss: not allowed with 'judged', which learns no ramps",
        ),
        (
            f"early_exit: {{judged: [{JUDGED}, {JUDGED.replace('{y:', '{z:')}]}}",
            "early_exit.judged[1].outputs: expected the outputs of the first exit: y",
        ),
        (
            f"early_exit: {{judged: [{JUDGED.replace('0.2', '2')}]}}",
            "early_exit.judged[0].threshold: expected less than or equal to 1",
        ),
        (
            f"early_exit: {{enlarge: true, mode: shrink, judged: [{JUDGED}]}}",
            "early_exit.enlarge: needs 'mode: shrink' and two or more of 'judged'",
        ),
        ("early_exit: {judged: [{quality: q}]}", "early_exit.judged[0]: expected a key 'outputs'"),
        ("early_exit: 1%\nvariants: [64]", "early_exit: not allowed with 'variants'"),
    ],
)
def test_a_bad_value_names_its_key(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("executor", ["in_process", "profiled"])
def test_without_a_worker_they_are_left_out_with_a_warning(
    define: Callable[..., ModelDefinition], executor: str
) -> None:
    definition = define(yaml=f"early_exit: 1%\nexecutor: {executor}")
    assert definition.settings.exits is None
    assert definition.warnings == (f"early_exit: has no effect with 'executor: {executor}'",)


def test_learnt_files_beside_a_model_are_no_part_of_it(
    define: Callable[..., ModelDefinition],
) -> None:
    definition = define(yaml="early_exit: 1%")
    assert definition.settings.exits == EarlyExitSettings()
    before = model_hash(definition)
    folder = definition.folder / "exits"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    assert model_hash(definition) == before


def test_ramps_are_stored_beside_the_model_or_under_the_state_folder(
    define: Callable[..., ModelDefinition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = define(yaml="early_exit: 1%")
    beside, state = definition.folder / "exits", tmp_path / "state"
    own = state / "profiles/m/1/exits"
    assert ProfileStore(state).exits_folder(definition) == beside
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert ProfileStore().exits_folder(definition) == beside, "there is no other place"
    assert ProfileStore(state).exits_folder(definition) == own
    beside.mkdir()
    (beside / "manifest.json").write_text("first")
    assert ProfileStore(state).exits_folder(definition) == own
    assert (own / "manifest.json").read_text() == "first"
    (own / "manifest.json").write_text("learnt since")
    assert ProfileStore(state).exits_folder(definition) == own
    assert (own / "manifest.json").read_text() == "learnt since"
    os.utime(beside / "manifest.json", (2**33, 2**33))
    ProfileStore(state).exits_folder(definition)
    assert (own / "manifest.json").read_text() == "first", "it was made anew"


def test_classes_are_named_by_label_or_number() -> None:
    settings = EarlyExitSettings(whole_model_only=("nsfw", 0))
    assert settings.class_numbers(("sfw", "nsfw")) == (1, 0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((), "expected a class number, since the model has no 'labels', got 'nsfw'"),
        (("cat", "dog"), "expected one of the labels, such as 'cat', got 'nsfw'"),
    ],
)
def test_a_class_without_a_label_is_refused(labels: tuple[str, ...], message: str) -> None:
    settings = EarlyExitSettings(whole_model_only=("nsfw",))
    with pytest.raises(OptionError, match=re.escape(f"whole_model_only[0]: {message}")):
        settings.class_numbers(labels)


def test_a_repository_names_the_unknown_label(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"")
    text = "early_exit: {whole_model_only: [nsfw]}\n"
    (tmp_path / "m" / "slacktide.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"early_exit\.whole_model_only\[0\]"):
        Repository(tmp_path).read("m")

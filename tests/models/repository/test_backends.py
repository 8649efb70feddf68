"""The choice of `backend: auto`, and answers that are too different to be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.executors.agreement import Agreement
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.backends import candidates, check_agreement, fastest, speed_ratio
from slacktide.models.profile_cache import hardware_of
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.settings_file import parse_settings, validate_settings
from slacktide.profiles import LatencyTable

Builder = Callable[..., Path]


def read(root: Path, add_model: Builder, yaml: str) -> Any:
    name = f"m{len([*root.iterdir()])}"
    add_model(name, yaml=yaml)
    return Repository(root).read(name)[0]


def agreement(error: float, top1: float | None) -> Agreement:
    return Agreement(error, "y", top1, 100, True)


@pytest.mark.parametrize(
    ("yaml", "error", "top1", "is_served"),
    [
        ("backend: openvino", 0.01, 1.0, True),
        ("backend: openvino", 0.03, 1.0, False),
        ("backend: openvino", 0.0, 0.95, True),  # near ties
        ("backend: openvino", 0.01, None, True),
        ("{backend: openvino, precision: bf16}", 0.3, 0.95, True),
        ("{backend: openvino, precision: bf16}", 0.3, None, True),
        ("precision: int8", 0.01, 0.89, False),
        ("precision: int8", float("inf"), None, False),
    ],
)
def test_answers_that_differ_too_much_are_refused(
    root: Path, add_model: Builder, yaml: str, error: float, top1: float | None, is_served: bool
) -> None:
    definition = read(root, add_model, yaml)
    check_agreement(definition, None)
    if is_served:
        check_agreement(definition, agreement(error, top1))
        return
    with pytest.raises(MeasuringError, match="answers differ too much") as caught:
        check_agreement(definition, agreement(error, top1))
    assert caught.value.permanent


def test_auto_tries_both_and_bf16_only_openvino(root: Path, add_model: Builder) -> None:
    def tried(yaml: str) -> list[str]:
        definition = read(root, add_model, yaml)
        return [candidate.settings.backend for candidate in candidates(definition)]

    assert tried("backend: auto") == ["onnxruntime", "openvino"]
    assert tried("{backend: auto, precision: bf16}") == ["openvino"]
    assert tried("") == ["onnxruntime"]


def test_profiles_are_kept_by_backend_and_precision(root: Path, add_model: Builder) -> None:
    yamls = ("", "backend: openvino", "precision: int8", "{backend: openvino, precision: int8}")
    keys = {hardware_of(read(root, add_model, yaml)) for yaml in yamls}
    assert len(keys) == 4


async def chosen(definition: Any, times: dict[str, float | str]) -> tuple[str, str]:
    async def measure(candidate: Any) -> Any:
        time = times[candidate.settings.backend]
        if isinstance(time, str):
            raise MeasuringError(time)
        return SimpleNamespace(
            record=SimpleNamespace(table=LatencyTable.linear(time, time, 8, cores=[1, 2]))
        )

    winner, _, note = await fastest(definition, measure)
    return winner.settings.backend, note


async def test_auto_takes_the_faster_and_says_by_how_much(root: Path, add_model: Builder) -> None:
    auto = read(root, add_model, "backend: auto")
    name, note = await chosen(auto, {"onnxruntime": 2.0, "openvino": 1.0})
    assert (name, note) == (
        "openvino",
        "backend: openvino is used, which takes 0.50 of the time of onnxruntime",
    )
    name, note = await chosen(auto, {"onnxruntime": 1.0, "openvino": 2.0})
    assert (name, note) == (
        "onnxruntime",
        "backend: onnxruntime is used, which takes 0.50 of the time of openvino",
    )
    name, _ = await chosen(auto, {"onnxruntime": 1.01, "openvino": 1.0})
    assert name == "onnxruntime"  # too little to change anything for


async def test_auto_stays_with_what_runs(root: Path, add_model: Builder) -> None:
    auto = read(root, add_model, "backend: auto")
    for broken, other in (("openvino", "onnxruntime"), ("onnxruntime", "openvino")):
        name, note = await chosen(auto, {broken: "it broke", other: 1.0})
        assert (name, note) == (other, f"{broken} is not used: it broke")
    with pytest.raises(MeasuringError, match="it broke"):
        await chosen(auto, {"onnxruntime": "that too", "openvino": "it broke"})
    with pytest.raises(MeasuringError, match="it broke"):
        await chosen(read(root, add_model, ""), {"onnxruntime": "it broke"})


def test_tables_are_compared_where_both_were_measured() -> None:
    table = LatencyTable.linear(0.0, 2.0, 8, cores=[1, 2])
    other = LatencyTable.linear(0.0, 1.0, 4, cores=[2])
    assert speed_ratio(table, other) == pytest.approx(2.0)
    assert speed_ratio(table, LatencyTable.linear(0.0, 1.0, 4, cores=[3])) == 1.0


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("backend: tensorflow", "backend: .*'onnxruntime', 'openvino' or 'auto'"),
        ("precision: fp16", "precision: "),
        ("precision: bf16", "precision: bf16 needs 'backend: openvino' or 'auto'"),
        ("{backend: openvino, device: cuda}", "backend: expected the default on a GPU"),
        ("{precision: int8, providers: [cpu]}", "precision: expected the default on a GPU or with"),
        ("{backend: openvino, executor: in_process}", "executor: expected 'worker' with 'backend'"),
        (
            "variants: {precisions: [fp32, int8]}",
            "variants.precisions: expected each once, least precise first: int8, fp32",
        ),
        ("variants: {precisions: [bf16, fp32]}", "bf16 needs 'backend: openvino'"),
        (
            "{precision: int8, variants: {precisions: [int8, fp32]}}",
            "precision: not allowed with 'variants.precisions'",
        ),
        (
            "variants: {files: {a: {file: m.onnx, precision: bf16}, b: m.onnx}}",
            "variants.files.a.precision: bf16 needs",
        ),
        (
            "variants: {files: {a: m.onnx, b: m.onnx}}",
            "expected a different file, backend or precision for each variant",
        ),
    ],
)
def test_settings_that_cannot_be_are_named(yaml: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        validate_settings(parse_settings(yaml.encode(), where="m"), where="m")


def test_precisions_are_variants_of_one_file(root: Path, add_model: Builder) -> None:
    definition = read(
        root, add_model, "{backend: auto, variants: {precisions: [int8, bf16, fp32]}}"
    )
    assert definition.settings.variants.names == ("int8", "bf16", "fp32")
    variants = [definition.of_variant(name) for name in definition.files]
    assert [variant.settings.precision for variant in variants] == ["int8", "bf16", "fp32"]
    assert len({variant.model_path for variant in variants}) == 1


def test_files_may_differ_in_backend_and_precision(root: Path, add_model: Builder) -> None:
    yaml = "variants: {files: {fast: {file: model.onnx, precision: int8}, exact: model.onnx}}"
    definition = read(root, add_model, yaml)
    assert definition.of_variant("fast").settings.precision == "int8"
    assert definition.of_variant("exact").settings.precision == "fp32"

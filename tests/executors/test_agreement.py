"""How far answers differ between backends and precisions, and the int8 file that they compare."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.agreement import compared, find_agreement
from slacktide.executors.cores import available_cores
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.quantising import FOLDER, quantised_file
from slacktide.executors.timed_replica import MeasuringError

SCORES = TensorSpec("scores", Datatype.FP32, (-1, 3))
NAMES = TensorSpec("names", Datatype.BYTES, (-1, 1))
MAP = TensorSpec("map", Datatype.FP32, (-1, 1, 2, 2))
ONE = available_cores()[:1]


def outputs(*arrays: Any) -> Any:
    return tuple((array.shape, array.tobytes()) for array in map(np.float32, arrays))


def test_the_error_is_relative_to_the_largest_magnitude_and_classes_are_counted() -> None:
    expected = [outputs([[0.0, 2.0, 4.0]]), outputs([[8.0, 0.0, 0.0]])]
    answers = [outputs([[0.0, 5.0, 4.0]]), outputs([[8.0, 0.0, 1.0]])]
    agreement = compared([SCORES], expected, answers, sampled=True)
    assert (agreement.error, agreement.top1, agreement.rows) == (3.0 / 8.0, 0.5, 2)
    assert str(agreement) == (
        "the same class in 50.0%, largest error 37.50% of 'scores' (2 samples)"
    )


def test_answers_that_took_too_long_are_left_out() -> None:
    expected = [outputs([[0.0, 1.0, 0.0]])] * 5
    agreement = compared([SCORES], expected, expected[:3], sampled=False)
    assert (agreement.error, agreement.top1, agreement.rows) == (0.0, 1.0, 3)


def test_maps_and_texts_have_no_classes() -> None:
    expected = [(*outputs([[[[1.0, 2.0], [3.0, 4.0]]]]), ((1, 1), b"\x01\x00\x00\x00a"))]
    agreement = compared([MAP, NAMES], expected, expected, sampled=False)
    assert (agreement.error, agreement.top1) == (0.0, None)
    assert str(agreement) == "largest error 0.00% of 'map' (1 random rows)"


def test_another_shape_differs_without_limit() -> None:
    expected, answers = [outputs([[1.0, 2.0, 3.0]])], [outputs([[1.0, 2.0]])]
    assert compared([SCORES], expected, answers, sampled=False).error == np.inf


async def test_both_run_the_same_rows(models: Any, kit: Any) -> None:
    changed = kit.source(models.layers(), backend="openvino")
    async with kit.serving(ProcessExecutor()) as executor:
        agreement = await find_agreement(executor, changed, cores=ONE, budget_s=2.0)
    assert (agreement.top1, agreement.sampled) == (1.0, False)
    assert agreement.rows > 16
    assert agreement.error < 1e-4


async def test_a_model_that_does_not_run_has_no_agreement(models: Any, kit: Any) -> None:
    missing = kit.source(models.folder / "none.onnx", root=models.folder, backend="openvino")
    async with kit.serving(ProcessExecutor()) as executor:
        with pytest.raises(MeasuringError, match="the model file is missing"):
            await find_agreement(executor, missing, cores=ONE, budget_s=0.5)


def rows_beside(path: Path, count: int, seed: int = 0) -> Path:
    samples = path.parent / "rows.npz"
    generator = np.random.default_rng(seed)
    np.savez(samples, x=generator.random((count, 3, 8, 8), np.float32))
    return samples


async def test_the_int8_file_is_made_once_from_the_samples(models: Any, kit: Any) -> None:
    path = models.layers()
    samples = rows_beside(path, 80)
    int8 = kit.source(path, samples=samples, precision="int8")
    async with kit.serving(ProcessExecutor()) as executor:
        agreement = await find_agreement(executor, int8, cores=ONE, budget_s=2.0)
        on_openvino = kit.source(path, samples=samples, precision="int8", backend="openvino")
        other = await find_agreement(executor, on_openvino, cores=ONE, budget_s=2.0)
        files = {file: file.stat().st_mtime_ns for file in (path.parent / FOLDER).iterdir()}
        await find_agreement(executor, int8, cores=ONE, budget_s=0.5)
    assert {file: file.stat().st_mtime_ns for file in (path.parent / FOLDER).iterdir()} == files
    assert len(files) == 2
    for file in files:
        kinds = {node.op_type for node in onnx.load(str(file)).graph.node}
        assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    for measured in (agreement, other):
        assert (measured.rows, measured.sampled) == (40, True)
        assert 0.0 < measured.error < 0.1
        assert measured.top1 is not None
        assert measured.top1 >= 0.9


def test_other_samples_make_another_file_and_the_old_one_goes(models: Any, kit: Any) -> None:
    path = models.layers()
    first = quantised_file(kit.source(path, samples=rows_beside(path, 4, seed=1)))
    os.utime(first, (1, 1))
    second = quantised_file(kit.source(path, samples=rows_beside(path, 4, seed=2)))
    assert first != second
    assert [*(path.parent / FOLDER).iterdir()] == [second]


def test_int8_without_samples_is_refused(models: Any, kit: Any) -> None:
    with pytest.raises(ModelError, match=r"precision: int8 needs .*samples"):
        quantised_file(kit.source(models.layers()))


def test_a_model_without_anything_to_quantise_or_with_wrong_rows_is_named(
    models: Any, kit: Any
) -> None:
    path = models.layers()
    samples = path.parent / "rows.npz"
    np.savez(samples, x=np.zeros((3, 3, 9, 9), np.float32))
    with pytest.raises(ModelError, match="samples"):
        quantised_file(kit.source(path, samples=samples))
    assert not [*(path.parent / FOLDER).glob("*.onnx")]


def test_a_folder_that_cannot_be_written_is_named(models: Any, kit: Any) -> None:
    path = models.layers()
    source = kit.source(path, samples=rows_beside(path, 4))
    (path.parent / FOLDER).write_text("a file in its place")
    with pytest.raises(ModelError, match="precision: the int8 file cannot be written: File exists"):
        quantised_file(source)

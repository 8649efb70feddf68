"""Members of unequal length in one batch get what they would have got alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import BatchFinished
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding, pad_element
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.protocol import FrameReader, decode_ready, encode_ready
from slacktide.executors.hand_over.tensor_io import PaddedGatherer, TensorError
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import TensorRef
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.session import ModelSession

MASKED = Padding(
    {"x": PaddedInput(1, 7.5), "mask": PaddedInput(1, 0, mask=True)},
    {"states": PaddedOutput(2)},  # the warm-up finds out that `doubled` grows, too
    (2, 5),
)


def masked_model(models: Any, kit: Any) -> Any:
    """mean (rows, 3) over real positions only; states (rows, 3, length) and doubled (rows, length,
    3) as long as the input."""
    three = [numpy_helper.from_array(np.array([i], np.int64), f"i{i}") for i in range(3)]
    return kit.save(
        models.path("masked"),
        [
            helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["real", "i2"], ["weight"]),
            helper.make_node("Mul", ["x", "weight"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "i1"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["weight", "i1"], ["count"], keepdims=0),
            helper.make_node("Div", ["sum", "count"], ["mean"]),
            helper.make_node("Transpose", ["kept"], ["states"], perm=[0, 2, 1]),
            helper.make_node("Add", ["x", "x"], ["doubled"]),
        ],
        [
            kit.value("x", TensorProto.FLOAT, ["n", "length", 3]),
            kit.value("mask", TensorProto.INT64, ["n", "length"]),
        ],
        [
            kit.value("mean", TensorProto.FLOAT, ["n", 3]),
            kit.value("states", TensorProto.FLOAT, ["n", 3, "length"]),
            kit.value("doubled", TensorProto.FLOAT, ["n", "length", 3]),
        ],
        three,
    )


def member(arena: Arena, kit: Any, x: Any, *, sent: bool) -> Any:
    """A request; its mask sent, or left for the worker to make."""
    mask: Any = np.ones(x.shape[:2], np.int64)
    return kit.put(arena, x, mask if sent else (x.shape[:2], b""))


def expected(x: Any) -> list[Any]:
    return [x.mean(axis=1), x.transpose(0, 2, 1), 2 * x]


@pytest.mark.parametrize("executor_type", [ProcessExecutor, InProcessExecutor])
async def test_answers_are_those_of_each_request_alone(
    executor_type: Any, models: Any, kit: Any, arena: Arena
) -> None:
    rng = np.random.default_rng(5)
    shapes = [(1, 4), (2, 1), (1, 9), (3, 4), (1, 2)]
    xs = [rng.standard_normal((rows, length, 3), np.float32) for rows, length in shapes]

    executor = executor_type()
    try:
        path = masked_model(models, kit)
        case = kit.Case(executor, path, arena, padding=MASKED, warmup_shapes={"x": (4, 3)})
        await case.ready()
        members = [member(arena, kit, x, sent=i % 2 == 0) for i, x in enumerate(xs)]
        for picked in ([0, 1, 2, 3, 4], [2], [0, 3], [1, 4], [4, 2]):
            report = await case.run(1, *(members[i] for i in picked))
            assert isinstance(report, BatchFinished), report
            for outputs, i in zip(case.results, picked, strict=True):
                for data, wanted in zip(outputs, expected(xs[i]), strict=True):
                    output = np.frombuffer(data, np.float32).reshape(wanted.shape)
                    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)
            assert case.shapes == [[w.shape for w in expected(xs[i])] for i in picked]
    finally:
        await executor.close()


SPEC = TensorSpec("x", Datatype.INT16, (-1, 2, -1))
CUBE = TensorSpec("x", Datatype.FP32, (-1, -1, 3))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(1, 2),
    st.integers(0, 1),
)
def test_gathered_members_stand_in_order_with_padding_behind(
    shapes: list[tuple[int, int]], axis: int, shift: int
) -> None:
    spec = (CUBE, SPEC)[axis - 1]
    memory = bytearray(shift)
    refs, arrays = [], []
    for index, (rows, length) in enumerate(shapes):
        shape = (rows, 2, length) if axis == 2 else (rows, length, 3)
        array = np.full(shape, index + 1, spec.datatype.dtype)
        refs.append(TensorRef(len(memory), array.nbytes, shape))
        memory += array.tobytes()
        arrays.append(array)
    gathered = PaddedGatherer(spec, PaddedInput(axis, -9)).gather(refs, memoryview(memory))
    longest = max(length for _, length in shapes)
    widths = [[(0, longest - n if i == axis else 0) for i in range(3)] for _, n in shapes]
    wanted = [
        np.pad(array, width, constant_values=-9)
        for array, width in zip(arrays, widths, strict=True)
    ]
    assert np.array_equal(gathered, np.concatenate(wanted))


@pytest.mark.parametrize(
    ("datatype", "unit"),
    [(d, 1) for d in Datatype if d not in (Datatype.BYTES, Datatype.BF16)]
    + [(Datatype.BF16, 0x3F80)],
)
def test_masks_of_any_type_are_made(datatype: Datatype, unit: int) -> None:
    spec = TensorSpec("mask", datatype, (-1, -1))
    gatherer = PaddedGatherer(spec, PaddedInput(1, 0, mask=True))
    refs = [TensorRef(0, 0, (1, 1)), TensorRef(0, 0, (2, 3))]
    assert gatherer.gather(refs, memoryview(b"")).tolist() == [[unit, 0, 0], [unit] * 3, [unit] * 3]
    assert gatherer.gather(refs[:1], memoryview(b"")).tolist() == [[unit]]


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        ([TensorRef(0, 8, (1, 2, 2)), TensorRef(8, 6, (1, 3, 1))], "different shapes in one batch"),
        (
            [TensorRef(0, 8, (1, 2, 2)), TensorRef(8, 2, (1, 2, 1))],
            "its size does not match its shape",
        ),
        (
            [TensorRef(0, 8, (1, 2, 2)), TensorRef(1020, 8, (1, 2, 1))],
            "its size does not match its shape",
        ),
        ([TensorRef(0, 8, (1, 2, 2)), TensorRef(1022, 4, (1, 2, 1))], "lies outside the arena"),
    ],
)
def test_members_that_do_not_fit_are_told(refs: list[TensorRef], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        PaddedGatherer(SPEC, PaddedInput(2, 0)).gather(refs, memoryview(bytes(1024)))


OUTPUTS = {"x": PaddedOutput(2), "z": PaddedOutput(1)}


def test_padding_that_does_not_fit_the_model_is_left_out() -> None:
    interface = ModelInterface((SPEC,), (SPEC,), 4)
    assert Padding({"x": PaddedInput(1)}, {}).fitting(interface) is None
    assert Padding({"y": PaddedInput(2)}, {}).fitting(interface) is None
    padding = Padding({"x": PaddedInput(2), "z": PaddedInput(1)}, OUTPUTS, (3,))
    fitting = Padding({"x": PaddedInput(2)}, {"x": PaddedOutput(2)}, (3,))
    assert padding.fitting(interface) == fitting
    assert padding.fitting(ModelInterface((SPEC,), (SPEC,), 0)) is None
    assert pad_element(Datatype.BYTES, 0) is None
    assert pad_element(Datatype.BOOL, 2) is None


def test_outputs_are_proved_at_the_start(models: Any, kit: Any) -> None:
    path = kit.save(
        models.path("twice"),
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)],
        [kit.value("x", TensorProto.FLOAT, ["n", "length"])],
        [kit.value("y", TensorProto.FLOAT, ["n", "twice"])],
    )
    padding = Padding({"x": PaddedInput(1)}, {"y": PaddedOutput(1)}, (2, 5))
    session = ModelSession.open(kit.source(path, padding=padding), threads=1)
    lengths = "axis 1 is 4 for inputs of 2, 10 for inputs of 5"
    with pytest.raises(ModelError, match=rf"outputs.y.pad: expected an axis as long .*{lengths}"):
        session.warm_up()


def test_lengths_that_the_model_cannot_do_are_named(models: Any, kit: Any) -> None:
    path = kit.save(
        models.path("at_most_four"),
        [
            helper.make_node("Concat", ["x", "w"], ["y"], axis=0),
            helper.make_node("Slice", ["y", "zero", "minus", "zero"], ["z"]),
        ],
        [kit.value("x", TensorProto.FLOAT, ["n", "length"])],
        [kit.value("z", TensorProto.FLOAT, ["n", "length"])],
        [
            numpy_helper.from_array(np.ones((1, 4), np.float32), "w"),
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([-1], np.int64), "minus"),
        ],
    )
    padding = Padding({"x": PaddedInput(1)}, {"z": PaddedOutput(1)}, (4, 9))
    source = kit.source(path, padding=padding, warmup_shapes={"x": (4,)})
    session = ModelSession.open(source, threads=1)
    with pytest.raises(ModelError, match="lengths names 9, but one row fails at that length"):
        session.warm_up()


def test_equal_lengths_are_used_where_they_lie(models: Any, kit: Any, arena: Arena) -> None:
    """What is not padded costs no copy: the way of every other model."""
    gatherer = PaddedGatherer(CUBE, PaddedInput(1))
    payload = kit.put(arena, np.ones((1, 4, 3), np.float32))
    memory = arena.view(Slot(0, 4096))
    alone = gatherer.gather([payload.tensors[0]], memory)
    assert np.shares_memory(alone, np.frombuffer(memory, np.uint8))


@pytest.mark.parametrize(("operator", "changes"), [("Abs", False), ("Softmax", True)])
def test_padding_that_changes_answers_is_noted(
    models: Any, kit: Any, operator: str, changes: bool
) -> None:
    path = kit.save(
        models.path(operator),
        [helper.make_node(operator, ["x"], ["y"])],
        [kit.value("x", TensorProto.FLOAT, ["n", "length"])],
        [kit.value("y", TensorProto.FLOAT, ["n", "length"])],
    )
    padding = Padding({"x": PaddedInput(1)}, {}, (4, 9))
    session = ModelSession.open(kit.source(path, padding=padding), threads=1)
    session.warm_up()
    assert session.note.startswith("padding changes answers: output 'y'") is changes
    assert session.opened().note == session.note


def test_a_mask_hides_padding(models: Any, kit: Any) -> None:
    path = masked_model(models, kit)
    source = kit.source(path, padding=MASKED, warmup_shapes={"x": (4, 3)})
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    assert session.note == ""


async def test_an_output_with_a_stride_is_cut_to_its_own_length(
    models: Any, kit: Any, arena: Arena
) -> None:
    """Maxima of four positions; the last may cover fewer."""
    path = kit.save(
        models.path("pool"),
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[4], strides=[4], ceil_mode=1)],
        [kit.value("x", TensorProto.FLOAT, ["n", 2, "length"])],
        [kit.value("y", TensorProto.FLOAT, ["n", 2, "pools"])],
    )
    padding = Padding({"x": PaddedInput(2, -9.0)}, {}, (8, 12))
    xs = [np.random.default_rng(i).random((1, 2, i), np.float32) for i in (5, 8, 11, 4, 1)]
    executor = InProcessExecutor()
    try:
        case = kit.Case(executor, path, arena, padding=padding, warmup_shapes={"x": (2, 8)})
        await case.ready()
        report = await case.run(1, *(kit.put(arena, x) for x in xs))
        assert isinstance(report, BatchFinished), report
        for (data,), x in zip(case.results, xs, strict=True):
            pools = [x[..., at : at + 4].max(-1) for at in range(0, x.shape[2], 4)]
            output = np.frombuffer(data, np.float32).reshape(1, 2, -1)
            np.testing.assert_array_equal(output, np.stack(pools, -1))
    finally:
        await executor.close()


def test_a_stride_that_one_length_cannot_tell_is_not_reported(models: Any, kit: Any) -> None:
    path = kit.save(
        models.path("four_alone"),
        [
            helper.make_node("Mul", ["x", "w"], ["four"]),
            helper.make_node("Shape", ["x"], ["length"], start=1),
            helper.make_node("Slice", ["four", "zero", "length", "one"], ["y"]),
        ],
        [kit.value("x", TensorProto.FLOAT, ["n", "length"])],
        [kit.value("y", TensorProto.FLOAT, ["n", "length"])],
        [
            numpy_helper.from_array(np.ones(4, np.float32), "w"),
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
        ],
    )
    padding = Padding({"x": PaddedInput(1)}, {"y": PaddedOutput(1)}, (4,))
    source = kit.source(path, padding=padding, warmup_shapes={"x": (4,)})
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    (body,) = (body for _, body in FrameReader().feed(encode_ready(session.opened())))
    assert decode_ready(body).padded_outputs == {}

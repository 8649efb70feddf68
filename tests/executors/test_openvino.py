"""OpenVINO in place of ONNX Runtime: the same answers, on the cores that the server chooses."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import BatchAborted, BatchFinished, ExitPolicy, PoolId, ReplicaLost
from slacktide.executors import openvino_session
from slacktide.executors.cores import available_cores, thread_cores
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.openvino_session import CancelOptions, OpenVinoSession
from slacktide.executors.ports import Arranged, BatchOrder, Resized
from slacktide.executors.process import ProcessExecutor
from slacktide.lab.examples import example

ALL = available_cores()


def search_path(*first: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([*first, *sys.path])}


ONE, OTHER = ALL[:1], ALL[-1:]


@pytest.mark.parametrize("name", ["residual", "chained", "text"])
def test_answers_are_those_of_onnx_runtime(name: str) -> None:
    model = example(name).onnx()
    expected = onnxruntime.InferenceSession(model)
    session = OpenVinoSession(model, 1, "fp32")
    described = [(arg.name, arg.type) for arg in (*session.get_inputs(), *session.get_outputs())]
    arguments = (*expected.get_inputs(), *expected.get_outputs())
    assert described == [(arg.name, arg.type) for arg in arguments]
    generator = np.random.default_rng(3)
    feeds: dict[str, Any] = {}
    for argument in expected.get_inputs():
        tail = [axis if isinstance(axis, int) else 9 for axis in argument.shape[1:]]
        if argument.type == "tensor(int64)":
            feeds[argument.name] = generator.integers(1, 2, (3, *tail))
        else:
            feeds[argument.name] = generator.integers(0, 256, (3, *tail), np.uint8)
    names = [output.name for output in expected.get_outputs()]
    for ours, theirs in zip(session.run(names, feeds), expected.run(names, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_later_run_leaves_earlier_answers_alone(models: Any) -> None:
    session = OpenVinoSession(models.matmul(), 1, "fp32")
    (first,) = session.run(["y"], {"x": np.ones((2, 4), np.float32)})
    kept = first.copy()
    session.run(["y"], {"x": np.zeros((2, 4), np.float32)})
    np.testing.assert_array_equal(first, kept)


def test_a_model_that_openvino_cannot_read_is_refused(models: Any, kit: Any) -> None:
    node = helper.make_node("Unheard", ["x"], ["y"], domain="com.microsoft")
    value = kit.value
    path = kit.save(
        models.path("unheard"),
        [node],
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 4])],
    )
    with pytest.raises(ModelError, match=r"OpenVINO cannot open the model: .*Unheard"):
        OpenVinoSession(path, 1, "fp32")


@pytest.mark.replaces_parts
def test_a_processor_without_bfloat16_is_named(monkeypatch: Any, models: Any) -> None:
    class Core:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino_session, "load_openvino", Core)
    with pytest.raises(ModelError, match="precision: this processor has no bfloat16"):
        OpenVinoSession(models.matmul(), 1, "bf16")


SIDE, NODES = 256, 2000


@pytest.fixture
def long_chain(models: Any, kit: Any) -> Path:
    """Products in a row, which take seconds for a thousand rows; [rows, SIDE]."""
    names = ["x", *(f"t{number}" for number in range(NODES - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [before, "w"], [after])
        for before, after in itertools.pairwise(names)
    ]
    value = kit.value
    return kit.save(
        models.path("long"),
        nodes,
        [value("x", TensorProto.FLOAT, ["n", SIDE])],
        [value("y", TensorProto.FLOAT, ["n", SIDE])],
        [numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "w")],
    )


def test_a_run_stops_when_it_is_told_to(long_chain: Path) -> None:
    session = OpenVinoSession(long_chain, 1, "fp32")
    many = {"x": np.ones((2000, SIDE), np.float32)}
    options = CancelOptions()
    stop = threading.Timer(0.02, lambda: setattr(options, "terminate", True))
    stop.start()
    with pytest.raises(RuntimeError, match="terminated"):
        session.run(["y"], many, options)
    with pytest.raises(RuntimeError, match="terminated"):  # told before it begins
        session.run(["y"], many, options)
    few = np.ones((1, SIDE), np.float32)
    (answer,) = session.run(["y"], {"x": few}, CancelOptions())
    np.testing.assert_allclose(answer, few)


@pytest.mark.skipif(len(ALL) < 2, reason="needs two cores")
async def test_its_threads_stay_on_the_cores_that_the_server_chose(
    models: Any, kit: Any, arena: Any
) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        threads = tuple(range(1, len(ALL) + 1))
        path = models.layers()
        case = kit.Case(executor, path, arena, backend="openvino", threads=threads)
        await case.ready()
        members = [kit.put(arena, np.ones((1, 3, 8, 8), np.float32)) for _ in range(8)]
        for number, cores in enumerate((ALL, OTHER, ALL, ONE, OTHER)):
            case.handle.resize(cores)
            assert await case.next() == Resized(cores)
            for batch in range(3):
                assert isinstance(await case.run(3 * number + batch, *members), BatchFinished)
                assert thread_cores(case.handle.pid) == cores


async def test_a_batch_is_aborted(long_chain: Path, kit: Any, arena: Any) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        settings = {"backend": "openvino", "max_batch": 2000, "warm_up_s": 0.0}
        case = kit.Case(executor, long_chain, arena, **settings)
        await case.ready()
        member = kit.put(arena, np.ones((2000, SIDE), np.float32))
        case.handle.run(BatchOrder(7, (member,)))
        case.handle.abort(7)
        assert isinstance(await case.next(), BatchAborted)
        member = kit.put(arena, np.ones((1, SIDE), np.float32))
        assert isinstance(await case.run(8, member), BatchFinished)


async def test_a_model_is_cut_into_stages(models: Any, kit: Any, arena: Any) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        path = models.layers()
        exits = kit.write_ramps(path)
        case = kit.Case(executor, path, arena, backend="openvino", exits=exits)
        await case.ready()
        member = kit.put(arena, np.ones((1, 3, 8, 8), np.float32))
        await case.run(1, member)
        whole = np.frombuffer(case.results[0][0], np.float32)
        policy = ExitPolicy(PoolId("m", "1"), (0, 1), (0.0, 0.0), revision=1)
        case.handle.publish(policy)
        arranged = await case.next()
        assert isinstance(arranged, Arranged), arranged
        assert (arranged.ramps, arranged.detail) == ((0, 1), "")
        report = await case.run(2, member)
        while not isinstance(report, BatchFinished):  # released members come first
            report = await case.next()
        staged = np.frombuffer(case.results[0][0], np.float32)
        np.testing.assert_allclose(staged, whole, atol=1e-5)


def test_openvino_reports_nothing() -> None:
    program = (
        "import sys\n"
        "from slacktide.executors.openvino_session import load_openvino\n"
        "load_openvino()\n"
        "print([name for name in sys.modules if 'telemetry' in name])"
    )
    command, environment = [sys.executable, "-c", program], os.environ | search_path()
    assert subprocess.check_output(command, env=environment) == b"[]\n"


async def test_without_openvino_it_names_the_command(models: Any, kit: Any, arena: Any) -> None:
    hidden = models.folder / "hidden" / "openvino"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')")
    program = (
        "from pathlib import Path\n"
        "from slacktide.executors.onnx_runtime import ModelError\n"
        "from slacktide.executors.openvino_session import OpenVinoSession\n"
        "try: OpenVinoSession(Path('m.onnx'), 1, 'fp32')\n"
        "except ModelError as error: print(error)"
    )
    environment = os.environ | search_path(str(hidden.parent))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True)
    message = "backend: openvino is not installed; pip install 'slacktide[openvino]'\n"
    assert (done.stdout.decode(), done.returncode) == (message, 0), done.stderr


def test_a_process_that_keeps_its_cores_is_moved_only_from_outside() -> None:
    program = (
        "import os, sys\n"
        "from slacktide.executors.kept_cores import keep_cores\n"
        "keep_cores()\n"
        f"os.sched_setaffinity(0, {set(ALL)!r})\n"
        "print(sorted(os.sched_getaffinity(0)), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(sorted(os.sched_getaffinity(0)), flush=True)\n"
    )

    def confine() -> None:
        os.sched_setaffinity(0, ONE)

    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=confine,
        env=os.environ | search_path(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == f"{[*ONE]}\n"
        os.sched_setaffinity(process.pid, OTHER)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == f"{[*OTHER]}\n"


async def test_a_broken_file_ends_the_replica_for_good(
    kit: Any, arena: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    async with kit.serving(ProcessExecutor()) as executor:
        lost = await kit.Case(executor, path, arena, backend="openvino").next()
        assert isinstance(lost, ReplicaLost)
        assert lost.permanent

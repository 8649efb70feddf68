"""Models that are left early, served for real: what is learnt, released, refused and told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from tests.end_to_end.chained import EXITS, LAYERS, WIDTH, chain, rows
from tests.end_to_end.streets import pipeline
from tests.exits.classifiers import find_positions

from slacktide.domain import ExitMode
from slacktide.engine import EngineSettings
from slacktide.executors.process import ProcessExecutor
from slacktide.exits.manifest import ExitManifest, Ramp, read_manifest
from slacktide.exits.ramp_graph import with_features
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.frames import SIZE, video
from slacktide.lab.replay import replay
from slacktide.models.exit_files import save_ramps
from slacktide.models.exit_samples import learn_from_samples
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import Repository
from slacktide.planning.exits import StatedExits
from slacktide.recording import Call, Recording
from slacktide.server.app import App

pytestmark = pytest.mark.slow  # each of its servers learns and measures for seconds

BEST = "decode: {as: softmax, from: scores, probabilities: true, top: 2}\n"


def slow_weights() -> NDArray[np.float32]:
    """From its features to its classes, at the position as at the end."""
    return np.eye(8, 2, k=-1, dtype=np.float32)


def slow_end(zoo: Any, name: str, settings: str) -> Path:
    """A classifier of rows [8] whose work comes almost all behind its position, `early`."""
    value = helper.make_tensor_value_info
    path: Path = zoo.save(
        name,
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Relu", ["m"], ["early"]),
            helper.make_node("Unsqueeze", ["early", "axis"], ["deep"]),
            helper.make_node("Add", ["deep", "wide"], ["s0"]),  # [n, 8, 200000]
            *[helper.make_node("Erf", [f"s{i}"], [f"s{i + 1}"]) for i in range(60)],
            helper.make_node("ReduceMean", ["s60"], ["mean"], axes=[2], keepdims=0),
            helper.make_node("Mul", ["mean", "none"], ["nothing"]),
            helper.make_node("Add", ["early", "nothing"], ["same"]),
            helper.make_node("MatMul", ["same", "last"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
        ],
        [value("x", TensorProto.FLOAT, ["n", 8])],
        [value("scores", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"),
            numpy_helper.from_array(slow_weights(), "last"),
            numpy_helper.from_array(np.array([2], np.int64), "axis"),
            numpy_helper.from_array(np.zeros(200_000, np.float32), "wide"),
            numpy_helper.from_array(np.float32(0.0), "none"),
        ],
        settings=settings,
    )
    return path


def learn(zoo: Any, name: str, folder: Path, data: NDArray[Any], input: str = "x") -> None:
    """Have its ramps learnt, as `slacktide exits add` does."""
    (definition,) = Repository(zoo.root).read(name)
    np.savez(folder / "rows.npz", allow_pickle=False, **{input: data})

    async def work() -> Any:
        executor = ProcessExecutor()
        try:
            return await learn_from_samples(
                executor, definition, folder / "rows.npz", cores=(0,), revision=1
            )
        finally:
            await executor.close()

    learnt = asyncio.run(work())
    save_ramps(definition, definition.folder / "exits", learnt.manifest)


def fixed(*ramps: int, threshold: float, mode: ExitMode) -> Callable[..., StatedExits]:
    """Settings that have these ramps active with this threshold from the start."""

    def stated(*given: Any, **others: Any) -> StatedExits:
        thresholds = (threshold,) * len(ramps)
        return replace(StatedExits(*given, **others), mode=mode, ramps=ramps, thresholds=thresholds)

    return stated


def arranged(house: Any, model: str) -> None:
    """Wait until a worker answers early."""

    def is_there(app: App) -> bool:
        for pool, state in app.exits.states.items():
            if pool.model == model:
                return bool(state.ramps) and state.open_chain == state.ramps
        return False

    house.until(is_there, f"the stages of {model!r} are open")


def exit_stats(house: Any, model: str) -> dict[str, Any]:
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    return dict(stats["exit_stats"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("exits")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    for name in ("learnt", "foreign", "torn", "fresh", "taught"):
        chain(zoo, name)
    chain(zoo, "inside", "early_exit: 1%\nexecutor: in_process\nmax_batch: 8\n")
    learn(zoo, "learnt", folder, rows(600))
    paths = (zoo.root / "learnt/1/exits").iterdir()
    files = {path.name: path.read_bytes() for path in paths}
    for name, change in (("foreign", b""), ("torn", b"[" * 100_000)):
        (zoo.root / name / "1/exits").mkdir()
        for file, content in files.items():
            (zoo.root / name / "1/exits" / file).write_bytes(content)
        if change:
            (zoo.root / name / "1/exits/manifest.json").write_bytes(change)
        else:  # the ramps of another model
            path = zoo.root / name / "1/exits/manifest.json"
            stated = json.loads(path.read_text())
            path.write_text(json.dumps({**stated, "model_sha256": "0" * 64}))
    with serve(zoo, record=folder / "server.rec", control_port=0) as house:
        yield house


@pytest.fixture
def exits(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


def test_stored_ramps_are_planned_with(exits: Any) -> None:
    def learnt(app: Any) -> bool:
        return any(
            pool.model == "learnt" and status.revision == 1
            for pool, status in app.exits.status().items()
        )

    exits.until(learnt, "the planner knows the ramps of the manifest")
    stats = exit_stats(exits, "learnt")
    assert stats["revision"] == 1
    assert (stats["mode"], stats["feedback"]) == ("auto", 1.0), "nothing is judged yet"
    stored = exits.look(lambda app: app.catalog.find("learnt", None).exits)
    assert stored.names == tuple(f"r{layer}" for layer in range(LAYERS))
    assert stored.makes([0])
    assert not stored.makes([0, 1])
    assert {ramp["tensor"] for ramp in stats["ramps"]} <= set(stored.names)
    assert {ramp["threshold"] for ramp in stats["ramps"]} <= {0.0}


@pytest.mark.parametrize("name", ["foreign", "torn", "fresh"])
def test_without_ramps_of_its_own_a_model_is_served_as_it_is(exits: Any, name: str) -> None:
    stats = exit_stats(exits, name)
    assert (stats["revision"], stats["ramps"]) == (0, [])
    assert stats["reason"]
    document = exits.call_of({"x": ("FP32", [1, WIDTH], rows(1)[0].tolist())}, report_timing=True)
    answer = exits.infer(name, document)
    assert answer.status == 200
    assert answer.json["parameters"]["exit"] == ""
    assert [output["name"] for output in answer.json["outputs"]] == ["scores", "state"]


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server with ramps that answer whatever is sure enough; afterwards its recording is played
    again."""
    folder = tmp_path_factory.mktemp("leaving")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    zoo.spin(settings="max_batch: 8\n")
    chain(zoo, "chain")
    learn(zoo, "chain", folder, rows(600))
    chain(zoo, "best", EXITS + BEST)
    learn(zoo, "best", folder, rows(600))
    make_repository(folder / "examples", models=["residual"])
    shutil.move(folder / "examples" / "residual", zoo.root)
    (zoo.root / "residual/slacktide.yaml").write_text(EXITS)
    frames = np.stack([frame for frame, _ in video("day", 0, 300)])
    learn(zoo, "residual", folder, frames, "frames")
    positions = "positions: {add: [early], forbid: [same]}"
    slow_end(zoo, "slow", f"early_exit: {{{positions}}}\nmax_batch: 2\nscheduler: fifo\n")
    (definition,) = Repository(zoo.root).read("slow")
    ramp = Ramp(0, "early", slow_weights(), np.zeros(2, np.float32), 1.0, 1.0, 0.1)
    manifest = ExitManifest(model_hash(definition), 1, 300, "samples", ("scores",), (ramp,))
    save_ramps(definition, definition.folder / "exits", manifest)
    path = folder / "server.rec"
    with pytest.MonkeyPatch.context() as patch:
        stated = fixed(0, threshold=0.2, mode=ExitMode.RELEASE)
        patch.setattr("slacktide.models.repository.early_exit.StatedExits", stated)
        patient = EngineSettings(hang_floor=30.0)
        patch.setattr("slacktide.server.app.EngineSettings", lambda: patient)
        with serve(zoo, record=path, control_port=0, hang_floor=30.0) as house:
            arranged(house, "chain")
            arranged(house, "best")
            arranged(house, "slow")
            arranged(house, "residual")
            yield house
    recording = Recording(path)
    assert replay(recording).difference is None
    calls = [line.record for line in recording.lines() if isinstance(line.record, Call)]
    event_names = {type(event).__name__ for call in calls for event in call.events}
    assert {"RowsReleased", "BatchFinished", "ReplicaLost"} <= event_names


def end_of(data: NDArray[np.float32], path: Path) -> tuple[Any, Any]:
    """What the whole model says: scores and states."""
    session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return tuple(session.run(None, {"x": data}))


def ask(
    house: Any,
    row: NDArray[np.float32],
    *wanted: str,
    model: str = "chain",
    **parameters: Any,
) -> Any:
    """The answer to one row, as tritonclient has it over HTTP."""
    with tritonclient.http.InferenceServerClient(house.http) as client:
        x = tritonclient.http.InferInput("x", [1, WIDTH], "FP32")
        x.set_data_from_numpy(row[None])
        outputs = [tritonclient.http.InferRequestedOutput(name) for name in wanted]
        parameters["report_timing"] = True
        return client.infer(model, [x], outputs=outputs or None, parameters=parameters)


def early_scores(folder: Path, data: NDArray[Any]) -> tuple[str, NDArray[np.float32]]:
    """The tensor of the first ramp of a version, and what that ramp says of these inputs."""
    model = onnx.load(str(folder / "model.onnx"))
    whole = with_features(model, find_positions(model)).SerializeToString()
    session = InferenceSession(whole, providers=["CPUExecutionProvider"])
    ramp = read_manifest(folder / "exits").ramps[0]
    (pooled,) = session.run(["exits/features/0"], {session.get_inputs()[0].name: data})
    return ramp.tensor, np.asarray(ramp.logits(pooled), np.float32)


def test_frames_leave_an_example_model_with_what_its_ramp_says(leaving: Any) -> None:
    house = leaving
    data = np.stack([frame for frame, _ in video("day", 400, 440)])
    folder = house.zoo.root / "residual/1"
    tensor, logits = early_scores(folder, data)
    session = InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    left = 0
    with tritonclient.http.InferenceServerClient(house.http) as client:
        for frame, exit_logits in zip(data, logits, strict=True):
            asked = tritonclient.http.InferInput("frames", [1, 3, SIZE, SIZE], "UINT8")
            asked.set_data_from_numpy(frame[None])
            answer = client.infer("residual", [asked], parameters={"report_timing": True})
            expected = session.run(["logits"], {"frames": frame[None]})[0][0]
            if exit_of(answer):
                left += 1
                assert exit_of(answer) == tensor
                expected = exit_logits
            assert answer.as_numpy("logits")[0] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert 0 < left < len(data)


def exit_of(answer: Any) -> str:
    return str(answer.get_response()["parameters"]["exit"])


def test_early_answers_are_what_the_ramp_says_and_the_others_the_models(leaving: Any) -> None:
    house, data = leaving, rows(60, seed=3)
    folder = house.zoo.root / "chain/1"
    ends, _ = end_of(data, folder / "model.onnx")
    tensor, logits = early_scores(folder, data)
    early = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    before = house.counts("chain").get("early_exit", 0)
    left = 0
    for row, end, ramp_answer in zip(data, ends, early, strict=True):
        answer = ask(house, row, "scores")
        if exit_of(answer):
            left += 1
            assert exit_of(answer) == tensor == "r0"
            assert answer.as_numpy("scores")[0] == pytest.approx(ramp_answer, abs=1e-4)
        else:
            assert answer.as_numpy("scores")[0] == pytest.approx(end, abs=1e-4)
    assert 0 < left < len(data), "easy ones alone leave"
    assert house.counts("chain")["early_exit"] - before == left
    metrics = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
    labels = 'model="chain",version="1",position="0",tensor="r0"'
    (count,) = re.findall(rf"^slacktide_early_exits_total{{{labels}}} (\d+)", metrics, re.M)
    assert int(count) == before + left
    (ramps,) = exit_stats(house, "chain")["ramps"]
    assert ramps["request_count"] == before + left
    assert ramps["judged_rows"] >= left, "all rows run on"


def test_a_decoder_reads_early_answers_too(leaving: Any) -> None:
    data = rows(40, seed=3)
    left = 0
    for row in data:
        answer = ask(leaving, row, model="best")  # all outputs, which the decoder makes
        raw = ask(leaving, row, "scores").as_numpy("scores")[0]
        left += bool(exit_of(answer))
        best = np.argsort(-raw)[:2]
        assert answer.as_numpy("classes")[0].tolist() == best.tolist()
        assert answer.as_numpy("scores")[0] == pytest.approx(raw[best], abs=1e-4)
    assert 0 < left < len(data)


@pytest.mark.parametrize("asked", [{"final": True}, {}])
def test_requests_for_the_whole_model_get_it(leaving: Any, asked: dict[str, bool]) -> None:
    """A client says so, or wants an output that no ramp makes; all are wanted if none is named."""
    house, data = leaving, rows(40, seed=3)
    scores, states = end_of(data, house.zoo.root / "chain/1/model.onnx")
    assert any(exit_of(ask(house, row, "scores")) for row in data[:12])
    for place in range(12):
        answer = ask(house, data[place], *(["scores"] if asked else []), **asked)
        assert exit_of(answer) == ""
        assert answer.as_numpy("scores")[0] == pytest.approx(scores[place], abs=1e-4)
        if not asked:
            assert answer.as_numpy("state")[0] == pytest.approx(states[place], abs=1e-2)


def test_over_grpc_it_is_the_same(leaving: Any) -> None:
    house, (row,) = leaving, rows(40, seed=3)[:1]
    with tritonclient.grpc.InferenceServerClient(house.grpc) as client:
        x = tritonclient.grpc.InferInput("x", [1, WIDTH], "FP32")
        x.set_data_from_numpy(9.0 * row[None])  # very sure
        wanted = [tritonclient.grpc.InferRequestedOutput("scores")]

        def exit(**parameters: Any) -> str:
            parameters["report_timing"] = True
            answer = client.infer("chain", [x], outputs=wanted, parameters=parameters)
            return str(answer.get_response().parameters["exit"].string_param)

        assert exit() == "r0"
        assert exit(final=True) == ""


def test_a_worker_killed_after_a_release_leaves_what_was_answered(leaving: Any) -> None:
    house = leaving

    def call(*features: float) -> dict[str, Any]:
        data = [0.0, *features, 0.0, 0.0, 0.0, 0.0, 0.0]
        return dict(house.call_of({"x": ("FP32", [1, 8], data)}, report_timing=True))

    with house.hold():
        sure = house.later("slow", call(9.0, 0.0))
        unsure = house.later("slow", call(1.0, 1.01))
        house.queued("slow", 2)
    answer = sure.result()
    os.kill(house.worker("slow"), signal.SIGKILL)
    assert answer.json["parameters"]["exit"] == "early"
    assert answer.json["parameters"]["batch_size"] == 2
    again = unsure.result()
    assert again.status == 200
    assert again.json["parameters"]["exit"] == ""
    assert again.json["outputs"][0]["data"][1] > 0.5
    counts = house.counts("slow")
    assert (counts["early_exit"], counts["on_time"]) == (1, 1)


def test_models_that_state_none_have_none(exits: Any) -> None:
    for name in ("matmul", "inside"):
        (stats,) = exits.get(f"/v2/models/{name}/stats").json["model_stats"]
        assert "exit_stats" not in stats
        assert exits.look(lambda app, name=name: app.catalog.find(name, None).exits) is None


def test_a_stage_of_a_pipeline_is_left_early(
    tmp_path: Path, zoo: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request to its model is, and not where the frame wants what ramps do not make."""
    chain(zoo, "chain")
    learn(zoo, "chain", tmp_path, rows(600))
    pipeline(zoo, "watch", "slo: 20s\nstages: {see: chain}")
    stated = fixed(0, threshold=0.2, mode=ExitMode.RELEASE)
    monkeypatch.setattr("slacktide.models.repository.early_exit.StatedExits", stated)
    data, left = rows(12, seed=3), 0
    with (
        serve(zoo, placement="pipeline") as house,
        tritonclient.http.InferenceServerClient(house.http) as client,
    ):
        arranged(house, "chain")
        for row in data:
            x = tritonclient.http.InferInput("x", [1, WIDTH], "FP32")
            x.set_data_from_numpy(row[None])
            wanted = [tritonclient.http.InferRequestedOutput("see.scores")]
            parameters = {"report_timing": True}
            answer = client.infer("watch", [x], outputs=wanted, parameters=parameters)
            exit = answer.get_response()["parameters"]["see.exit"]
            alone = ask(house, row, "scores")
            assert exit == exit_of(alone)
            scores = alone.as_numpy("scores")
            assert answer.as_numpy("see.scores") == pytest.approx(scores, abs=1e-4)
            left += bool(exit)
        answer = client.infer("watch", [x], parameters=parameters)
        assert answer.get_response()["parameters"]["see.exit"] == ""
    assert 0 < left < len(data)

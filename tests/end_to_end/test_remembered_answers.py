"""Remembered answers, served for real: sessions of requests and of frames, changes, age."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http
from numpy.typing import NDArray
from tests.end_to_end.chained import CLASSES, WIDTH, chain, rows
from tests.end_to_end.test_early_exits import arranged, exit_stats, fixed, learn
from tests.end_to_end.test_frame_streams import Client

from slacktide.domain import ExitMode, is_in_run
from slacktide.wire.proto import messages as m

pytestmark = pytest.mark.slow  # ramps are learnt first

FRAMES = 3
SETTINGS = """
early_exit:
  accuracy_loss: 10%
  ramp_budget: 100%
  remember: {{frames: 3, age: {age}}}
max_batch: 8
"""


def scenes(count: int) -> NDArray[np.float32]:
    """A row of each scene, far apart."""
    rng = np.random.default_rng(5)
    return 3.0 * rng.uniform(0.0, 1.0, (count, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server whose models remember: `lasting` for an hour, `brief` for a microsecond."""
    folder = tmp_path_factory.mktemp("remembering")
    zoo = zoo_at(folder / "repository")
    for name, age in (("lasting", "1h"), ("brief", "1us")):
        chain(zoo, name, SETTINGS.format(age=age))
    learn(zoo, "lasting", folder, rows(600))
    shutil.copytree(zoo.root / "lasting/1/exits", zoo.root / "brief/1/exits")
    with pytest.MonkeyPatch.context() as patch:
        stated = fixed(0, threshold=1e-4, mode=ExitMode.SHRINK)
        patch.setattr("slacktide.models.repository.early_exit.StatedExits", stated)
        with serve(zoo, control_port=0) as house:
            arranged(house, "lasting")
            arranged(house, "brief")
            yield house


def ask(
    house: Any, frames: Sequence[NDArray[np.float32]], model: str = "lasting", **parameters: Any
) -> list[tuple[str, NDArray[np.float32]]]:
    """For each frame, one after the other: which exit answered, and the scores."""
    answers = []
    with tritonclient.http.InferenceServerClient(house.http) as client:
        for frame in frames:
            x = tritonclient.http.InferInput("x", [1, WIDTH], "FP32")
            x.set_data_from_numpy(frame[None])
            outputs = [tritonclient.http.InferRequestedOutput("scores")]
            stated = {"report_timing": True, **parameters}
            reply = client.infer(model, [x], outputs=outputs, parameters=stated)
            exit_name = reply.get_response()["parameters"]["exit"]
            answers.append((exit_name, reply.as_numpy("scores")))
    return answers


def number_of(house: Any, model: str = "lasting") -> int:
    """The number of the session that was asked for last."""

    def last(app: Any) -> int:
        sessions = app.catalog.find(model, None).exits.sessions
        number: int = sessions._last_number
        return number

    return int(house.look(last))


def as_expected(exits: Sequence[str], frames: Sequence[int], session: int) -> bool:
    """Whether these are the exits of a session alone, of which each frame shows a scene."""
    kept = -1, -1
    for number, (exit_name, scene) in enumerate(zip(exits, frames, strict=True), start=1):
        remembered = kept[0] == scene and number - kept[1] <= FRAMES
        may_stay = remembered and is_in_run(session, number)
        if exit_name != ("memory" if remembered else "") and not may_stay:
            return False
        if not remembered:
            kept = scene, number
    return exits.count("memory") > 2


def test_a_session_gets_its_last_answer_again_and_changes_are_caught(remembering: Any) -> None:
    looks = scenes(CLASSES)
    course = [0] * 30 + [1] * 6 + [0] * 2 + [2] * 20 + [3, 2, 3, 2] + [1] * 120
    answers = ask(remembering, [looks[scene] for scene in course], session="gate")
    session = number_of(remembering)
    exits = [exit_name for exit_name, _ in answers]
    assert as_expected(exits, course, session)
    whole = [scores for _, scores in ask(remembering, list(looks))]
    for scene, (_, scores) in zip(course, answers, strict=True):
        np.testing.assert_allclose(scores, whole[scene], atol=1e-6)
    stats = exit_stats(remembering, "lasting")
    (ramp,) = stats["ramps"]
    assert (ramp["position"], ramp["tensor"]) == (0, "memory")
    assert ramp["request_count"] >= exits.count("memory")
    assert stats["changes"].keys() == {"judged", "missed", "caught", "delay_p95_frames", "alarms"}
    port = remembering.server.metrics_port
    metrics = remembering.ask(port, "GET", "/metrics").body.decode()
    assert 'slacktide_exit_judged_changes_total{model="lasting"' in metrics


def test_without_a_session_nothing_is_remembered(remembering: Any) -> None:
    (look, *_) = scenes(1)
    assert {exit_name for exit_name, _ in ask(remembering, [look] * 4)} == {""}
    # Sessions do not see each other, and a request for the whole model gets it.
    exits = [ask(remembering, [look], session=f"camera {number}")[0][0] for number in range(4)]
    assert exits == [""] * 4
    (first, second) = ask(remembering, [look] * 2, session="other", final=True)
    assert (first[0], second[0]) == ("", "")


def test_an_answer_is_not_remembered_beyond_its_age(remembering: Any) -> None:
    (look, *_) = scenes(1)
    answers = ask(remembering, [look] * 40, "brief", session="gate")
    assert {exit_name for exit_name, _ in answers} == {""}


def test_memory_outlives_its_worker(remembering: Any) -> None:
    (look, *_) = scenes(1)
    for attempt in range(10):  # not while frames of the session are judged
        ask(remembering, [look], session=f"killed {attempt}")
        if not is_in_run(number_of(remembering), 2):
            break

    def measured(app: Any) -> Any:
        (state,) = (of for pool, of in app.exits.states.items() if pool.model == "lasting")
        return state.times.arranged

    before = remembering.look(measured)
    os.kill(remembering.worker("lasting"), signal.SIGKILL)
    remembering.until(
        lambda app: measured(app) is not before, "the new worker has opened its stages"
    )
    ((exit_name, _),) = ask(remembering, [look], session=f"killed {attempt}")
    assert exit_name == "memory"


def test_frames_of_a_stream_are_a_session(remembering: Any) -> None:
    looks = scenes(2)
    course = [0] * 12 + [1] * 12

    def frame(client: Client, id: int, look: NDArray[np.float32]) -> str:
        data = look.astype("<f4").tobytes()
        client.send(announcement=m.Announcement(id=id, bytes=len(data)))
        request = m.ModelInferRequest(model_name="lasting", raw_input_contents=[data])
        request.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH])
        request.outputs.add(name="scores")
        request.parameters["report_timing"].bool_param = True
        client.send(frame=m.Frame(id=id, request=request))
        while True:
            ((kind, answer),) = client.read(1)
            if kind == "answer":
                return str(answer.response.parameters["exit"].string_param)

    with grpc.insecure_channel(remembering.grpc) as channel:
        client = Client(channel, "lasting")
        client.read(1)
        exits = [frame(client, id, looks[scene]) for id, scene in enumerate(course, start=1)]
        client.end()
    assert as_expected(exits, course, number_of(remembering))


def test_a_session_that_is_no_text_is_refused(remembering: Any) -> None:
    document = remembering.call_of({"x": ("FP32", [1, WIDTH], [0.0] * WIDTH)}, session=3)
    answer = remembering.infer("lasting", document)
    assert answer.status == 400
    assert "parameters.session" in answer.json["error"]

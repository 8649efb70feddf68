"""Models that state early exits and cannot have them: a sentence says why, and each is served as it
is, over real sockets and by real workers. Custom operators and states at a cut, which ONNX Runtime
does not open as such, are refused in tests/exits/test_positions.py, wrong settings in
tests/models/repository/test_early_exit.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from tests.end_to_end.chained import EXITS, WIDTH, chain, rows

from slacktide.exits.manifest import ExitManifest, Ramp
from slacktide.models.exit_files import save_ramps
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import Repository

node = helper.make_node
FEATURES = 8
STATED = "early_exit: {accuracy_loss: 5%, output: logits}\nmax_batch: 8\n"
SAYS = {
    "flat": "the model has no position for an early exit",
    "branched": "the model has no position for an early exit: 'a' is at node 'it' (If), which is "
    "control flow",
    "quantised": "the model has no position for an early exit: 'a' is at node 'it' "
    "(QuantizeLinear), a quantised operator",
    "recurrent": "the model has no position for an early exit: 'a' is without a row for each row "
    "of the input",
    "pair": "primary: expected the input that ramps look at, one of: x, bias",
    "single": "output 'logits' has only one class",
    "detached": "the model has no position for an early exit",
    "embedding": "output 'logits' may not hold classes, because no Softmax produces it; set "
    "early_exit.output: logits if it does",
}
"""By model, how its reason begins."""


def value(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def weight(name: str, *shape: int) -> Any:
    drawn = np.random.default_rng(len(name)).normal(0.0, 0.5, shape)
    return numpy_helper.from_array(drawn.astype(np.float32), name)


def odd(zoo: Any) -> None:
    """One model for each reason."""
    inside = helper.make_graph([node("Relu", ["a"], ["r"])], "g", [], [value("r", "n", FEATURES)])
    first, last = node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["b", "v"], ["logits"])
    weights = [weight("w", FEATURES, FEATURES), weight("v", FEATURES, 4)]
    true = numpy_helper.from_array(np.array(True), "yes")
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    bias = value("bias", "n", FEATURES)

    def save(
        name: str, *nodes: Any, inputs: Any = (), others: Any = (), classes: int = 4, more: str = ""
    ) -> None:
        zoo.save(
            name,
            nodes,
            [value("x", "n", FEATURES), *inputs],
            [value("logits", "n", classes)],
            [*weights, *others],
            settings=f"{more or STATED}",
        )

    save("flat", node("MatMul", ["x", "v"], ["logits"]))
    branch = node("If", ["yes"], ["b"], name="it", then_branch=inside, else_branch=inside)
    save("branched", first, branch, last, others=[true])
    quantised = node("QuantizeLinear", ["a", "scale"], ["q"], name="it")
    back = node("DequantizeLinear", ["q", "scale"], ["b"])
    save("quantised", first, quantised, back, last, others=[scale])
    recurrent = [
        node("MatMul", ["x", "w"], ["a0"]),
        node("Unsqueeze", ["a0", "one"], ["a"]),
        node("Unsqueeze", ["bias", "one"], ["h"]),
        node("GRU", ["a", "k", "r", "", "", "h"], ["", "s"], hidden_size=FEATURES),
        node("Squeeze", ["s", "one"], ["b"]),
        last,
    ]
    index = numpy_helper.from_array(np.array([0]), "one")
    states = [weight("k", 1, 24, 8), weight("r", 1, 24, 8), index]
    stated = (
        "early_exit: {primary: x, output: logits, positions: {forbid: [a0, b]}}\nmax_batch: 8\n"
    )
    save("recurrent", *recurrent, inputs=[bias], others=states, more=stated)
    both = [first, node("Add", ["a", "bias"], ["b"]), last]
    save("pair", *both, inputs=[bias])
    relu = node("Relu", ["a"], ["b"])
    single = node("MatMul", ["b", "u"], ["logits"])
    save("single", first, relu, single, others=[weight("u", FEATURES, 1)], classes=1)
    forbid = "early_exit: {output: logits, positions: {forbid: [b]}}\nmax_batch: 8\n"
    save("detached", first, relu, last, more=forbid)
    save("embedding", first, relu, last, more="early_exit: 5%\nmax_batch: 8\n")


def ramps_of(zoo: Any, name: str, **changes: Any) -> None:
    """Files of ramps that fit a `chain`; `changes`: of the manifest."""
    (definition,) = Repository(zoo.root).read(name)
    folder = definition.folder / "exits"
    nothing, bias = np.zeros((WIDTH, 4), np.float32), np.zeros(4, np.float32)
    ramps = tuple(
        Ramp(at, f"r{at}", nothing, bias, 1.0, 0.9, (at + 1) / 7, "mean and maximum")
        for at in range(6)
    )
    made = ExitManifest(model_hash(definition), 1, 300, "samples", ("scores",), ramps)
    save_ramps(definition, folder, made)
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("refusing")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    odd(zoo)
    for name in ("strange", "alike", "few", "foreign", "torn", "edited", "cut"):
        chain(zoo, name)
    chain(zoo, "tight", EXITS.replace("ramp_budget: 100%", "ramp_budget: 0.0001%"))
    chain(zoo, "exact", EXITS.replace("accuracy_loss: 10%", "accuracy_loss: 0.01%"))
    chain(zoo, "inside", "early_exit: 1%\nexecutor: in_process\nmax_batch: 8\n")
    for name in ("tight", "exact", "torn", "cut"):
        ramps_of(zoo, name)
    ramps_of(zoo, "foreign", model_sha256="0" * 64)
    ramps_of(zoo, "edited", rows=0)
    (zoo.root / "torn/1/exits/manifest.json").write_text("[" * 100_000)
    weights = zoo.root / "cut/1/exits/ramps.1.npz"
    weights.write_bytes(weights.read_bytes()[:-100])
    with serve(zoo, control_port=0) as house:
        yield house


@pytest.fixture
def house(refusing: Any) -> Iterator[Any]:
    yield refusing
    refusing.settle()


def reason(house: Any, model: str) -> str:
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    return str(stats["exit_stats"]["reason"])


def ask(house: Any, model: str, **inputs: NDArray[np.float32]) -> Any:
    with tritonclient.http.InferenceServerClient(house.http) as client:
        given = []
        for name, data in inputs.items():
            given.append(tritonclient.http.InferInput(name, data.shape, "FP32"))
            given[-1].set_data_from_numpy(data)
        return client.infer(model, given, parameters={"report_timing": True})


def served_as_it_is(house: Any, model: str, **inputs: NDArray[np.float32]) -> None:
    """Every output is the model's own."""
    path = house.zoo.root / model / "1/model.onnx"
    session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    answer = ask(house, model, **inputs)
    assert answer.get_response()["parameters"]["exit"] == ""
    for output, expected in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        assert answer.as_numpy(output.name) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def said(house: Any, model: str, sentence: str, between: Callable[[], Any] = lambda: None) -> str:
    """Wait until the statistics give a reason that begins like this; `between` looks at them."""
    last = ""
    while not last.startswith(sentence):  # the test's own time limit ends it
        between()
        last = reason(house, model)
    return last


@pytest.mark.parametrize("model", SAYS)
def test_a_graph_that_cannot_be_left_is_told_by_its_node(house: Any, model: str) -> None:
    full = said(house, model, SAYS[model])
    assert "\n" not in full
    assert "/" not in full, "no path of the machine"
    data = np.random.default_rng(3).normal(size=(2, FEATURES)).astype(np.float32)
    more = {"bias": data[::-1].copy()} if model in ("pair", "recurrent") else {}
    served_as_it_is(house, model, x=data, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "row", "sentence"),
    [
        ("strange", np.nan, "the model's logits has NaN or infinite values in "),
        ("alike", 0.0, "the model answers the first "),
    ],
)
def test_requests_from_which_nothing_can_be_learnt_are_told_of(
    house: Any, model: str, row: float, sentence: str
) -> None:
    data = np.full((8, WIDTH), row, np.float32)
    full = said(house, model, sentence, lambda: ask(house, model, x=data))
    assert full.removeprefix(sentence)[0].isdigit()
    served_as_it_is(house, model, x=rows(2))


def test_too_few_rows_are_told_by_their_number(house: Any) -> None:
    data = rows(8)
    message = "ramps need 512 rows, have "
    full = said(house, "few", message, lambda: ask(house, "few", x=data))
    assert 0 < int(full.removeprefix(message)) < 512
    served_as_it_is(house, "few", x=data)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("foreign", "manifest.json: model_sha256: the ramps belong to another model"),
        ("torn", "manifest.json: expected a JSON object"),
        ("edited", "manifest.json: rows: expected "),
        ("cut", "manifest.json: weights_sha256: ramps.1.npz was truncated or changed"),
    ],
)
def test_files_of_ramps_that_cannot_be_used_are_told_by_name(
    house: Any, model: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "slacktide"):
        assert house.post(f"/v2/repository/models/{model}/load").status == 200
    assert f"{model}: stored ramps are ignored: {sentence}" in caplog.text
    served_as_it_is(house, model, x=rows(2))


def test_a_budget_that_no_ramp_meets_leaves_none(house: Any) -> None:
    said(house, "tight", "no ramp pays within its budget")
    served_as_it_is(house, "tight", x=rows(2))


def test_an_accuracy_that_no_ramp_holds_lets_no_row_leave(house: Any) -> None:
    for _ in range(30):
        served_as_it_is(house, "exact", x=rows(2))
    (stats,) = house.get("/v2/models/exact/stats").json["model_stats"]
    assert {ramp["threshold"] for ramp in stats["exit_stats"]["ramps"]} <= {0.0, None}


def test_a_model_without_a_worker_is_told_at_its_load(
    house: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "slacktide"):
        assert house.post("/v2/repository/models/inside/load").status == 200
    assert "inside: early_exit: has no effect with 'executor: in_process'" in caplog.text
    session = InferenceSession(
        str(house.zoo.root / "inside/1/model.onnx"), providers=["CPUExecutionProvider"]
    )
    data = rows(2)
    (scores,) = session.run(["scores"], {"x": data})
    assert ask(house, "inside", x=data).as_numpy("scores") == pytest.approx(scores, abs=1e-3)

"""Models of a pipeline fit each other, or the key in pipeline.yaml is named that says otherwise."""

from __future__ import annotations

import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models import pipeline_interface as interface_module
from slacktide.models.pipeline_interface import StageTensors, pipeline_interface
from slacktide.models.plugins import offer_glue
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.pipeline import PipelineDefinition, parse_pipeline


def specs(*stated: str) -> tuple[TensorSpec, ...]:
    """`"image UINT8 -1 64 64 3"`."""
    tensors = []
    for text in stated:
        name, datatype, *shape = text.split()
        tensors.append(TensorSpec(name, Datatype[datatype], tuple(map(int, shape))))
    return tuple(tensors)


def model(inputs: str | tuple[str, ...], *outputs: str, max_batch: int = 8) -> ModelInterface:
    inputs = (inputs,) if isinstance(inputs, str) else inputs
    return ModelInterface(specs(*inputs), specs(*outputs), max_batch)


FRAME, CROP = "image UINT8 -1 -1 -1 3", "image UINT8 -1 64 64 3"
BOXES = ("boxes FP32 -1 96 4", "scores FP32 -1 96", "classes INT64 -1 96")
MODELS = {
    "detect": model(FRAME, *BOXES),
    "brand": model(CROP, "logits FP32 -1 10"),
    "plate": model("image UINT8 -1 64 -1 3", "logits FP32 -1 4 20"),
    "embed": model("text INT64 -1 -1", "features FP32 -1 64"),
    "score": model("features FP32 -1 64", "scores FP32 -1 3", "kind INT64 -1"),
    "join": model(("features FP32 -1 64", "scores FP32 -1 3"), "y FP32 -1 2"),
}
TRAFFIC = """
stages: {street: {model: detect, classes: [car, taxi]}, brand: brand, plate: plate}
edges:
  - {from: street, to: brand, each: box, when: {class: car, score: 0.4}}
  - {from: street, to: plate, each: box}
"""
JOINED = """
stages: {e: embed, s: {model: score, classes: [a, b, c]}, j: join}
edges: [{from: e, to: s}, {from: e, to: j}, {from: s, to: j}]
"""


def fitted(text: str, expanding: str = "", **changed: ModelInterface) -> ModelInterface:
    """`expanding`: a stage whose model returns any number of rows."""
    settings = parse_pipeline(text.encode(), where="p/pipeline.yaml")
    definition = PipelineDefinition("p", settings, settings.pipeline("p"))
    models = {**MODELS, **changed}
    return pipeline_interface(
        definition,
        {
            s.name: StageTensors(
                models[s.model],
                frozenset({"mask"}),
                s.name == expanding,
                next((i.name for i in models[s.model].inputs if i.name == "frame"), ""),
            )
            for s in definition.pipeline.stages
        },
    )


def test_a_pipeline_takes_what_its_source_takes_and_names_the_outputs_of_all_stages() -> None:
    pipeline = fitted(TRAFFIC)
    assert pipeline.inputs == specs(FRAME)
    assert pipeline.outputs == specs(
        "street.boxes FP32 -1 96 4",
        "street.scores FP32 -1 96",
        "street.classes INT64 -1 96",
        "brand.logits FP32 -1 10",
        "brand.rows INT64 -1",
        "plate.logits FP32 -1 4 20",
        "plate.rows INT64 -1",
    )
    assert not pipeline.batches, "rows of stages are not those of the source"


def test_outputs_go_to_inputs_of_their_name_and_only_chosen_rows_have_places() -> None:
    names = [spec.name for spec in fitted(JOINED).outputs]
    assert names == ["e.features", "s.scores", "s.kind", "j.y"]
    chosen = """
        stages: {s: {model: score, classes: [a, b, c]}, t: again}
        edges: [{from: s, to: t, when: {class: b, score: 0.1}, tensors: {kind: kind}}]
    """
    again = model("kind INT64 -1", "y FP32 -1 1")
    assert [s.name for s in fitted(chosen, again=again).outputs][2:] == ["t.y", "t.rows"]


def test_a_detector_may_lack_scores_and_classes_that_nobody_asks_for() -> None:
    bare = model(FRAME, "boxes FP32 -1 -1 4")
    assert (
        len(fitted(TRAFFIC.replace(", when: {class: car, score: 0.4}", ""), detect=bare).outputs)
        == 5
    )
    of_each = model(FRAME, "boxes FP16 -1 96 4", "scores FP32 -1 96 2")
    assert len(fitted(TRAFFIC, detect=of_each).outputs) == 6


def test_a_mask_may_be_left_out() -> None:
    masked = model(("features FP32 -1 64", "mask INT64 -1 8"), "y FP32 -1 1")
    text = "stages: {e: embed, s: masked}\nedges: [{from: e, to: s}]"
    assert fitted(text, masked=masked).outputs


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"detect": model(FRAME, "bxoes FP32 -1 96 4", *BOXES[1:])},
            "edges[0].boxes: expected an output [rows, n, 4]; 'detect' has no output 'boxes'; did",
        ),
        (
            {"detect": model(FRAME, "boxes FP32 -1 4", *BOXES[1:])},
            "edges[1].boxes: expected an output [rows, n, 4], got 'boxes', FP32 [-1, 4] of",
        ),
        (
            {"detect": model(FRAME, "boxes INT32 -1 96 4", *BOXES[1:])},
            "edges[0].boxes: expected an",
        ),
        (
            {"detect": model(FRAME, BOXES[0], "scores FP32 -1 95", BOXES[2])},
            "edges[0].scores: expected an output [rows, 96], got 'scores', FP32 [-1, 95]",
        ),
        (
            {"detect": model(FRAME, *BOXES[:2], "classes FP32 -1 96")},
            "edges[0].classes: expected an output of whole numbers",
        ),
        (
            {"detect": model(FRAME, *BOXES[:2])},
            "edges[0].when.class: expected an output with classes; 'detect' has no output 'classes",
        ),
        (
            {"detect": model(FRAME, BOXES[0], BOXES[2])},
            "edges[0].when.score: expected an output with scores",
        ),
        (
            {"detect": model(FRAME, BOXES[0], "scores FP32 -1 96 5")},
            "edges[0].scores: expected 2 classes as in 'stages.street.classes'",
        ),
        (
            {"detect": model("image FP32 -1 3 64 64", *BOXES)},
            "stages.street.model: expected a model with one input of images",
        ),
        (
            {"brand": model("image FP32 -1 64 64 3", "y FP32 -1 2")},
            "edges[0].to: expected a model that takes crops, with one input of images, uint8",
        ),
        (
            {"brand": model((CROP, "threshold FP32 -1 1"), "y FP32 -1 2")},
            "edges[0].to: no edge feeds the input 'threshold' of 'brand'",
        ),
        (
            {"brand": model((CROP, CROP.replace("image", "other")), "y FP32 -1 2")},
            "'brand' with 'image', UINT8 [-1, 64, 64, 3]; 'other', UINT8 [-1, 64, 64, 3]",
        ),
        (
            {"brand": model(CROP, "y FP32 -1 2", max_batch=0)},
            "stages.brand.model: expected a model with a batch axis, got 'brand' without one",
        ),
        (
            {"plate": model(CROP, "rows FP32 -1 2")},
            "stages.plate.model: expected a model without an output 'rows'",
        ),
    ],
)
def test_faults_of_edges_with_boxes_are_named(
    changed: dict[str, ModelInterface], problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        fitted(TRAFFIC, **changed)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("from: e, to: s}", "from: e, to: s, tensors: {y: features}}", "edges[0].tensors.y: expec"),
        (
            "from: e, to: s}",
            "from: e, to: s, tensors: {features: x}}",
            "edges[0].tensors.features: 'score' has no input 'x'; there are: features",
        ),
        (
            "{from: e, to: j}, {from: s, to: j}",
            "{from: s, to: j}",
            "edges[1].tensors: no edge feeds the input 'features' of 'j'",
        ),
        (
            "{from: e, to: j}, {from: s",
            "{from: e, to: j, tensors: {features: scores}}, {from: s",
            (
                "edges[1].tensors.features: expected an output that fits the input "
                "'scores', FP32 [-1, 3] of 'join'"
            ),
        ),
        (
            "{from: e, to: j}, ",
            "{from: e, to: j}, {from: s, to: e, tensors: {kind: text}}, ",
            "edges: expected no cycle",
        ),
        (
            "s: {model: score",
            "s: {model: other",
            (
                "edges[2].tensors: no output of 'other' ('kind', INT64 [-1]) has the "
                "same name as an input"
            ),
        ),
        (
            "s: {model: score",
            "s: {model: twice",
            "edges[2].tensors: an earlier edge already feeds the input 'features' of 'j'",
        ),
        (
            "{from: s, to: j}",
            "{from: s, to: j, when: {class: 2}}",
            "edges[2]: e and s yield different rows",
        ),
    ],
)
def test_faults_of_edges_with_rows_are_named(old: str, new: str, problem: str) -> None:
    assert old in JOINED
    with pytest.raises(SettingsError) as caught:
        fitted(
            JOINED.replace(old, new),
            other=model("features FP32 -1 64", "kind INT64 -1"),
            twice=model("features FP32 -1 64", "features FP32 -1 64", "scores FP32 -1 3"),
        )
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("edge", "outputs", "problem"),
    [
        ("when: {class: 3}", ("scores FP32 -1 3",), "edges[0].when.class: expected 0 to 2, got 3"),
        ("when: {class: a}", ("scores FP32 -1",), "edges[0].when.class: expected an output with"),
        ("when: {class: a}", ("scores FP32 -1 2",), "edges[0].scores: expected "),
        ("when: {score: 1}", ("x FP32 -1",), "edges[0].when.score: expected an output with scores"),
        ("when: {}, scores: z", ("scores FP32 -1",), "edges[0].scores: expected an output; 'one'"),
        ("when: {}", ("scores FP32 -1 3 3",), "edges[0].scores: expected an output [rows] or"),
        ("when: {}", ("classes INT64 -1 3 1",), "edges[0].classes: expected an output [rows]"),
        ("when: {}", ("scores INT64 -1",), "edges[0].scores: expected an output of FP32"),
    ],
)
def test_faults_of_edges_with_chosen_rows_are_named(
    edge: str, outputs: tuple[str, ...], problem: str
) -> None:
    classes = "" if "class: 3" in edge else ", classes: [a, b, c]"
    text = f"stages: {{a: {{model: one{classes}}}, b: two}}\nedges: [{{from: a, to: b, {edge}}}]"
    first = model("x FP32 -1 4", "y FP32 -1 4", *outputs)
    with pytest.raises(SettingsError) as caught:
        fitted(text, one=first, two=model("y FP32 -1 4", "z FP32 -1 1"))
    assert problem in str(caught.value)


def test_boxes_of_boxes_are_refused() -> None:
    text = """
        stages: {a: detect, b: second, c: brand}
        edges: [{from: a, to: b, each: box}, {from: b, to: c, each: box}]
    """
    with pytest.raises(SettingsError, match=r"edges\[1\].each: expected a stage that gets whole"):
        fitted(text, second=model(CROP, *BOXES))


TURNED = """
stages: {d: detect, c: brand, t: turn}
edges:
  - {from: d, to: c, each: box}
  - {from: d, to: t, each: box}
  - {from: c, to: t}
"""


def test_a_join_takes_crops_beside_rows_of_the_same_crops() -> None:
    turn = model((CROP, "logits FP32 -1 10"), "image UINT8 -1 64 64 3")
    names = [spec.name for spec in fitted(TURNED, turn=turn).outputs]
    assert names[-2:] == ["t.image", "t.rows"]
    again = TURNED.replace(
        "from: c, to: t", "from: c, to: t, tensors: {small: image, logits: logits}"
    )
    brand = model(CROP, "logits FP32 -1 10", CROP.replace("image", "small"))
    with pytest.raises(SettingsError, match="the input 'image' of 't' is cut out of the frame"):
        fitted(again, turn=turn, brand=brand)
    with pytest.raises(SettingsError, match=r"edges\[2\]: d and c yield different rows"):
        fitted(TURNED.replace("to: t}", "to: t, when: {score: 0}}"), turn=turn)


def test_a_stage_may_see_the_frame_if_the_source_takes_pictures() -> None:
    text = "stages: {d: detect, f: look}\nedges: [{from: d, to: f}]"
    look = model(("frame UINT8 -1 -1 -1 3", BOXES[0]), "y FP32 -1 1")
    assert [spec.name for spec in fitted(text, look=look).outputs][-1] == "f.y"
    with pytest.raises(SettingsError, match=r"stages\.d\.model: expected a model with one input"):
        fitted(text, look=look, detect=model("image FP32 -1 3 64 64", *BOXES))


def test_rows_before_and_after_a_stage_that_expands_them_are_not_joined() -> None:
    assert (
        fitted(
            JOINED.replace("{from: e, to: j}, ", ""),
            other=MODELS["join"],
            join=model("scores FP32 -1 3", "y FP32 -1 2"),
            score=model("features FP32 -1 64", "scores FP32 -1 3", "rows INT64 -1"),
            expanding="s",
        )
        .outputs[-1]
        .name
        == "j.y"
    )
    with pytest.raises(SettingsError, match=r"edges\[2\]: e and s yield different rows"):
        fitted(
            JOINED,
            expanding="s",
            score=model("features FP32 -1 64", "scores FP32 -1 3", "rows INT64 -1"),
        )


@pytest.mark.parametrize(
    ("edge", "output", "problem"),
    [
        ("", "logits FP32 -1 10", ""),
        (", tensors: {y: logits}", "y INT64 -1", ""),
        ("", "logit FP32 -1 10", r"edges\[2\]\.tensors: no output of 'brand'"),
        ("", "logits BYTES -1", r"edges\[2\]\.tensors: expected an output of up to 16 numbers"),
        ("", "logits FP32 -1 17", r"edges\[2\]\.tensors: expected an output of up to 16 numbers"),
        ("", "logits FP32 -1 -1", r"edges\[2\]\.tensors: expected an output of up to 16 numbers"),
        ("", "image UINT8 -1 64 64 3", r"edges\[2\]\.tensors: no output of 'brand'"),
    ],
)
def test_a_function_of_crops_may_take_numbers_beside_them(
    edge: str, output: str, problem: str
) -> None:
    offer_glue("turn_crop", "posixpath:join")
    crop = "t: {model: brand, crop: {function: turn_crop, takes: [logits]}}"
    text = TURNED.replace("t: turn", crop).replace("from: c, to: t", f"from: c, to: t{edge}")
    changed = {"brand": model(CROP, output)}
    if not problem:
        assert fitted(text, **changed)
        return
    with pytest.raises(SettingsError, match=problem):
        fitted(text, **changed)


READ = """
stages:
  find: lines
  side: {model: side, classes: ["0", "180"]}
  read: {model: plate, crop: {max_aspect: none}}
edges:
  - {from: find, to: side, each: box, quads: quads}
  - {from: side, to: read, each: crop, turn: {class: "180", score: 0.9}}
"""
LINES = ("quads FP32 -1 -1 4 2", "boxes FP32 -1 -1 4", "scores FP32 -1 -1")
READERS = {
    "lines": model(FRAME, *LINES),
    "side": model(CROP, "scores FP32 -1 2", "classes INT64 -1 2"),
}


def test_crops_of_quads_go_from_stage_to_stage() -> None:
    interface = fitted(READ, **READERS)
    names = [spec.name for spec in interface.outputs]
    assert names[3:] == ["side.scores", "side.classes", "side.rows", "read.logits", "read.rows"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quads: quads", "quads: qads", "edges[0].quads: expected an output [rows, n, 4, 2]; "),
        ("quads: quads", "quads: boxes", "edges[0].quads: expected an output [rows, n, 4, 2], got"),
        (", quads: quads", "", "edges[1].turn: expected crops of quads, but 'side' gets crops of"),
        ("from: side, to: read", "from: find, to: read", "edges[1].each: expected a stage that"),
        ("turn: {", "scores: z, turn: {", "edges[1].scores: expected an output; 'side' has no"),
        ("plate, crop: {max_aspect: none}", "embed", "edges[1].to: expected a model that takes"),
    ],
)
def test_faults_of_edges_with_crops_of_crops_are_named(old: str, new: str, problem: str) -> None:
    assert old in READ
    with pytest.raises(SettingsError) as caught:
        fitted(READ.replace(old, new), **READERS)
    assert problem in str(caught.value)


def test_quads_need_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface_module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"edges.0..quads: needs OpenCV: pip install"):
        fitted(READ, **READERS)

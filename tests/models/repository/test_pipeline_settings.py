"""pipeline.yaml: what it says, and what is told of one that cannot be, each with its key."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.domain.crops import BoxChoice, Glue
from slacktide.domain.pipelines import Edge, PipelineStage
from slacktide.models import plugins
from slacktide.models.repository.errors import FolderError, RepositoryError, SettingsError
from slacktide.models.repository.pipeline import (
    PipelineDefinition,
    PipelineSettings,
    parse_pipeline,
)
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.single_model import SingleModel

Builder = Callable[..., Path]

TRAFFIC = """
slo: 200ms
max_slo: 1s
stages:
  street: {model: detector, classes: [car, taxi, dog]}
  brand: brand
  plate: {model: plate, crop: {margin: 0.05}}
edges:
  - {from: street, to: brand, each: box, when: {class: [car, 1], score: 0.4, overlap: 0.5, most: 8}}
  - {from: street, to: plate, each: box, when: {class: taxi, height: 0.1}, scores: quality}
"""


def read(text: str) -> PipelineSettings:
    return parse_pipeline(text.encode(), where="p/pipeline.yaml")


def test_it_is_the_graph_that_it_says() -> None:
    settings = read(TRAFFIC)
    pipeline = settings.pipeline("traffic")
    assert (settings.slo, settings.max_slo, pipeline.slo) == (0.2, 1.0, 0.2)
    assert pipeline.name == "traffic"
    assert pipeline.stages == (
        PipelineStage("street", "detector"),
        PipelineStage("brand", "brand"),
        PipelineStage("plate", "plate", Glue(0.05)),
    )
    assert pipeline.edges == (
        Edge("street", "brand", "box", BoxChoice((0, 1), 0.4, 0.5, 8)),
        Edge("street", "plate", "box", BoxChoice((1,), height=0.1), scores="quality"),
    )


def test_classes_may_have_the_names_of_the_models_labels() -> None:
    settings = read(TRAFFIC.replace(", classes: [car, taxi, dog]", ""))
    definition = PipelineDefinition("p", settings, settings.pipeline("p"))
    resolved = definition.with_labels({"street": ("dog", "taxi", "car"), "brand": ("car",)})
    assert [edge.when.classes for edge in resolved.pipeline.edges if edge.when] == [(2, 1), (1,)]
    with pytest.raises(SettingsError) as caught:
        definition.with_labels({"street": ()})
    key = "p/pipeline.yaml: edges[0].when.class[0]: expected 'stages.street.classes' or 'labels'"
    assert str(caught.value).startswith(key)
    with pytest.raises(SettingsError, match=r"class\[0\]: street has no class 'car'"):
        definition.with_labels({"street": ("dog", "taxi")})
    stated = PipelineDefinition("p", read(TRAFFIC), read(TRAFFIC).pipeline("p"))
    assert stated.with_labels({"street": ("dog", "taxi", "car")}) == stated


def test_rows_of_any_score_go_on_and_outputs_are_named() -> None:
    text = "stages: {a: m, b: m}\nedges: [{from: a, to: b, when: {class: 2}, tensors: {y: x}}]"
    (edge,) = read(text).pipeline("p").edges
    assert edge.when == BoxChoice((2,), -math.inf, most=2**31)
    assert edge.tensors == (("y", "x"),)


def test_one_model_alone_is_a_pipeline() -> None:
    assert read("stages: {only: m}").pipeline("p").source == "only"


@pytest.mark.parametrize(
    ("stages", "complaint"), [(0, "at least 1, got none"), (33, "most 32, got 33")]
)
def test_stages_are_counted(stages: int, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as refused:
        read(f"stages: {{{', '.join(f's{n}: m' for n in range(stages))}}}")
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("slo: 200ms", "slp: 200ms", "slp: unknown key; did you mean 'slo'?"),
        ("slo: 200ms", "slo: 200", "slo: expected a duration with its unit"),
        ("slo: 200ms", "slo: 2s", "expected slo at most max_slo, got 2s and 1s"),
        ("brand: brand", "brand:", "stages.brand: expected keys and values, got nothing"),
        ("[car, taxi, dog]", "[]", "stages.street.classes: expected at least 1, got none"),
        ("[car, taxi, dog]", "['']", "classes[0]: expected at least 1 character, got ''"),
        ("brand: brand", "brand: 3", "stages.brand.model: expected a string, got 3"),
        ("brand: brand", "brand: {}", "stages.brand: expected a key 'model'"),
        ("brand: brand", "brand: ../m", "stages.brand.model: expected letters"),
        ("brand: brand", "br.and: m", "stages.br.and: expected letters"),
        ("dog]", "car]", "stages.street.classes[2]: 'car' is stated twice"),
        ("model: plate,", "model: plate, modle: x,", "stages.plate.modle: unknown key"),
        ("0.05", "-1", "stages.plate.crop.margin: expected greater than or equal to 0, got -1"),
        ("0.05}", "0.05, takes: [x]}", "stages.plate.crop.takes: needs 'function'"),
        (
            "margin: 0.05",
            "function: os.remove",
            "stages.plate.crop.function: expected the name of a glue function, got 'os.remove'",
        ),
        (
            "brand: brand",
            "brand: {model: m, crop: {}}\n  x: y",
            "expected one stage without an edge",
        ),
        ("to: brand", "to: brnd", "edges[0].to: no such stage; did you mean 'brand'?"),
        ("from: street, to: plate", "from: stret, to: plate", "edges[1].from: no such"),
        ("to: plate", "to: brand", "edges[1]: there is already an edge between street and brand"),
        ("to: brand", "too: brand", "edges[0].too: unknown key; did you mean 'to'?"),
        (
            "street, to: plate, each: box, when: {class: taxi, height: 0.1}",
            "plate, to: plate, each: box",
            "plate",
        ),
        (
            "scores: quality}",
            "scores: q}\n  - {from: plate, to: street}",
            "through street, brand, pla",
        ),
        ("[car, 1]", "cra", "edges[0].when.class[0]: street has no class 'cra'; did you mean 'car"),
        ("[car, 1]", "[car, 3]", "edges[0].when.class[1]: expected 0 to 2, got 3"),
        ("[car, 1]", "1.5", "edges[0].when.class[0]: expected the name of a class, or its number"),
        ("score: 0.4", "score: .nan", "edges[0].when.score: expected a finite number, got nan"),
        ("overlap: 0.5", "overlap: 0", "edges[0].when.overlap: expected greater than 0, got 0"),
        ("most: 8", "most: 1001", "edges[0].when.most: expected less than or equal to 1000"),
        (
            "when: {class: taxi, height: 0.1}",
            "when: {height: 1.5}",
            "edges[1].when.height: expected less than",
        ),
        ("each: box, when: {class: t", "when: {class: t", "edges[1].when.height: needs 'each"),
        ("when: {class: taxi, height: 0.1}", "whne: {class: taxi}", "edges[1].whne: unknown key"),
        ("each: box, when: {class: t", "when: {overlap: 0.9, class: t", "edges[1].when.overlap:"),
        (
            "each: box, when: {class: taxi, height: 0.1}",
            "boxes: b",
            "edges[1].boxes: needs 'each: box'",
        ),
        (
            "each: box, when: {class: taxi, height: 0.1}",
            "each: row",
            "edges[1].each: expected 'box' or 'crop', got 'row'",
        ),
        ("scores: quality", "tensors: {a: b}", "edges[1].tensors: not allowed with 'each"),
        ("scores: quality", "quads: a, boxes: b", "edges[1].quads: not allowed with 'boxes'"),
        ("scores: quality", "turn: {class: 1}", "edges[1].turn: needs 'each: crop'"),
        ("when: {class: taxi, height: 0.1}, ", "crop: 1, ", "edges[1].crop: unknown key"),
    ],
)
def test_faults_are_named_by_their_key(old: str, new: str, problem: str) -> None:
    assert TRAFFIC.count(old) >= 1
    with pytest.raises(SettingsError) as caught:
        read(TRAFFIC.replace(old, new, 1))
    assert problem in str(caught.value)
    assert str(caught.value).startswith("p/pipeline.yaml: ")


@pytest.mark.parametrize("text", ["", "[]", "stages:", "stages: {}", "stages: {a: m}\nedges: 3"])
def test_a_file_without_stages_or_edges_says_so(text: str) -> None:
    with pytest.raises(SettingsError, match=r"stages|edges|keys and values"):
        read(text)


def test_glue_has_the_name_that_the_servers_owner_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_GLUE", {"flip": "numpy:fliplr"})
    pipeline = read(TRAFFIC.replace("margin: 0.05", "function: flip")).pipeline("p")
    assert pipeline.by_name["plate"].glue == Glue(0.0, "numpy:fliplr")


def test_a_folder_with_a_pipeline_is_listed_as_one(root: Path, add_model: Builder) -> None:
    add_model("m")
    add_model("traffic", versions=())
    (root / "traffic" / "pipeline.yaml").write_text(TRAFFIC)
    repository = Repository(root)
    model, traffic = repository.scan()
    assert model.pipeline is None
    assert model.definitions
    assert traffic.pipeline is not None
    assert traffic.definitions == ()
    assert traffic.pipeline.models == ("detector", "brand", "plate")
    assert repository.pipeline("m") is None
    with pytest.raises(FolderError, match="traffic: expected a model, got a pipeline"):
        repository.read("traffic")


def test_a_pipeline_has_no_other_settings_and_a_broken_one_is_its_own_problem(
    root: Path, add_model: Builder
) -> None:
    add_model("good")
    add_model("a", versions=(), yaml="slo: 1s")
    add_model("b", versions=(), pbtxt="")
    (root / "c").mkdir()
    for name in "abc":
        (root / name / "pipeline.yaml").write_text("stages: {x: m}" if name != "c" else "stages: 3")
    (root / "d").mkdir()
    (root / "d" / "pipeline.yaml").symlink_to("/etc/hostname")
    add_model("e", versions=("2", "10"))
    (root / "e" / "pipeline.yaml").write_text("stages: {x: good}")
    problems = [str(listed.problem) for listed in Repository(root).scan()]
    assert problems[:3] == [
        "a/slacktide.yaml: not allowed with pipeline.yaml",
        "b/config.pbtxt: not allowed with pipeline.yaml",
        "c/pipeline.yaml: stages: expected keys and values, got 3",
    ]
    assert "leads out of the repository" in problems[3]
    complaint = "e/10: not allowed with pipeline.yaml: a pipeline has no versions"
    assert problems[4:] == [complaint, "None"]


def test_a_single_file_is_no_pipeline(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"model")
    (tmp_path / "pipeline.yaml").write_text("stages: {x: m}")
    assert SingleModel(tmp_path / "net.onnx", tmp_path).pipeline("net") is None


def test_the_folder_of_a_pipeline_is_no_repository(root: Path) -> None:
    (root / "pipeline.yaml").write_text("stages: {x: m}")
    with pytest.raises(RepositoryError, match="serve its parent folder"):
        Repository(root).names()


def test_the_examples_of_the_manual_are_pipelines() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [read(block).pipeline("p").source for block in blocks] == ["street", "street"]

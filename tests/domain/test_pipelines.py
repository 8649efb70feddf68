"""A pipeline is a graph without circles with one source; what is not says where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import Plan, StagePlace
from slacktide.domain.crops import BoxChoice
from slacktide.domain.pipelines import (
    BOX,
    MOST_STAGES,
    Edge,
    Pipeline,
    PipelineError,
    PipelineStage,
)


def pipeline(*arrows: str, more: tuple[str, ...] = (), **options: object) -> Pipeline:
    """`pipeline("a>b", "b>c")`: stages by name, each with a model of its name."""
    ends = [tuple(arrow.split(">")) for arrow in arrows]
    names = dict.fromkeys([name for pair in ends for name in pair] + list(more))
    edges = tuple(Edge(upstream, downstream) for upstream, downstream in ends)
    return Pipeline("p", tuple(PipelineStage(name, name) for name in names), edges, **options)  # type: ignore[arg-type]


TRAFFIC = pipeline("detect>brand", "detect>plate", "plate>owner")
JOINED = pipeline("a>b", "a>c", "b>d", "c>d", "d>e")


def test_the_graph_says_what_everybody_asks_of_it():
    assert TRAFFIC.source == "detect"
    assert TRAFFIC.sinks == ("brand", "owner")
    assert TRAFFIC.order == ("detect", "brand", "plate", "owner")
    assert TRAFFIC.downstream("detect") == ("brand", "plate")
    assert JOINED.upstream("d") == ("b", "c")
    assert JOINED.order == ("a", "b", "c", "d", "e")
    assert TRAFFIC.branches["plate"] == ("plate", "owner")
    assert JOINED.branches["b"] == ("b", "d", "e")
    assert [edge.downstream for edge in JOINED.out_of["a"]] == ["b", "c"]
    assert pipeline(more=("only",)).sinks == ("only",)


def test_a_branch_that_others_feed_cannot_be_handed_over():
    assert TRAFFIC.is_closed("plate")
    assert not JOINED.is_closed("b")
    assert JOINED.is_closed("d")
    assert JOINED.is_closed("a")


@pytest.mark.parametrize(
    ("make", "key", "says"),
    [
        (lambda: Pipeline("p", ()), "stages", "at least one stage"),
        (
            lambda: Pipeline("p", (PipelineStage("a", "m"), PipelineStage("a", "n"))),
            "stages.a",
            "twice",
        ),
        (
            lambda: Pipeline(
                "p", tuple(PipelineStage(f"s{i}", "m") for i in range(MOST_STAGES + 1))
            ),
            "stages",
            "at most",
        ),
        (lambda: pipeline("a>b", "b>a"), "edges", "cycle, found one through a, b"),
        (lambda: pipeline("a>a"), "edges", "cycle"),
        (lambda: pipeline("a>b", "c>b"), "stages", "got a, c"),
        (lambda: pipeline("a>b", more=("c",)), "stages", "got a, c"),
        (lambda: pipeline("a>b", "c>d", "d>c"), "edges", "through c, d"),
        (lambda: pipeline("a>b", "a>b"), "edges[1]", "already"),
        (
            lambda: Pipeline("p", (PipelineStage("a", "m"),), (Edge("a", "b"),)),
            "edges[0].to",
            "no such stage",
        ),
        (
            lambda: Pipeline("p", (PipelineStage("ab", "m"),), (Edge("ac", "ab"),)),
            "edges[0].from",
            "valid: ab",
        ),
        (
            lambda: Pipeline(
                "p", (PipelineStage("a", "m"), PipelineStage("b", "m")), (Edge("a", "b", "face"),)
            ),
            "edges[0].each",
            "'face'",
        ),
    ],
)
def test_an_impossible_pipeline_is_refused_with_its_key(make, key, says):
    with pytest.raises(PipelineError) as caught:
        make()
    assert caught.value.key == key
    assert says in caught.value.message, caught.value


def boxes(upstream: str, downstream: str, **options: object) -> Edge:
    return Edge(upstream, downstream, "box", **options)  # type: ignore[arg-type]


def test_a_join_takes_rows_of_the_same_things():
    stages = tuple(PipelineStage(name, name) for name in "abcd")
    cars, all_boxes = BoxChoice((2,)), BoxChoice()
    joined = (Edge("b", "d"), Edge("c", "d"))
    alike = (boxes("a", "b", when=cars), boxes("a", "c", when=cars), *joined)
    assert Pipeline("p", stages, alike).upstream("d") == ("b", "c")
    with pytest.raises(PipelineError, match=r"edges\[3\]: b and c yield different rows"):
        Pipeline(
            "p", stages, (boxes("a", "b", when=cars), boxes("a", "c", when=all_boxes), *joined)
        )
    with pytest.raises(PipelineError, match=r"edges\[2\].each: d gets crops from one stage only"):
        Pipeline("p", stages, (*alike[:2], boxes("b", "d"), boxes("c", "d")))
    with pytest.raises(PipelineError, match="yield different rows"):
        Pipeline("p", stages[:3], (boxes("a", "b"), Edge("a", "c"), Edge("b", "c")))


def test_a_stage_has_one_place():
    with pytest.raises(ValueError, match="two places"):
        Plan(places=(StagePlace("p", "a", "edge"), StagePlace("p", "a")))
    with pytest.raises(ValueError, match="p/a must not be negative"):
        StagePlace("p", "a", "edge", transfer=-1.0)
    assert Plan(places=(StagePlace("p", "a", "edge"), StagePlace("q", "a"))).places[1].device == ""


@pytest.mark.parametrize("key", ["boxes", "quads", "scores", "classes"])
def test_crops_that_other_outputs_select_are_not_joined(key: str) -> None:
    """They would differ in number and order."""
    stages = tuple(PipelineStage(name, name) for name in "abc")
    edges = (Edge("a", "b", BOX), Edge("a", "c", BOX), Edge("b", "c"))
    assert Pipeline("p", stages, edges).sinks == ("c",)
    other = replace(edges[1], **{key: "other"})
    with pytest.raises(PipelineError, match=r"edges\[2\]: a and b yield different rows"):
        Pipeline("p", stages, (edges[0], other, edges[2]))

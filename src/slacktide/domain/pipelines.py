"""`Pipeline`: models that answer a call together, under one deadline; clients see one model.

Stages are models; an edge passes what one stage yields to the next. A pipeline is an acyclic graph
with one source, which takes the client's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from slacktide.domain.crops import BoxChoice, Glue
from slacktide.domain.suggestions import suggestion

MOST_STAGES = 32

BOX, CROP = "box", "crop"
ROWS = "rows"
"""Name of the output that states for each row the index of its upstream row. A stage has this
output if it gets chosen boxes or rows, or if it expands rows."""


class PipelineError(ValueError):
    """An invalid pipeline."""

    def __init__(self, key: str, message: str) -> None:
        """`key`: the place of the error in the file, such as `edges[1].to`."""
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One model of a pipeline."""

    name: str
    model: str
    glue: Glue = Glue()
    """How its worker prepares crops for the model."""
    version: str | None = None
    """The version that its requests name: the loaded version that the pipeline was checked against.
    None: the route decides."""
    sees_frame: bool = False
    """Whether its model takes the whole picture of the frame in addition to rows."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Passes the outputs of a stage, or parts of the frame, to another stage."""

    upstream: str
    downstream: str
    each: str = ""
    """`box`: each box that the upstream stage finds becomes a row, cut from the frame. `crop`: each
    crop that the upstream stage got becomes a row again. Empty: the outputs of that stage are
    passed row by row."""
    when: BoxChoice | None = None
    """Selects boxes or rows; None: all rows, or boxes up to the default limit."""
    boxes: str = "boxes"
    scores: str = "scores"
    classes: str = "classes"
    """Upstream outputs with boxes, scores and classes. For rows, `scores` may be [rows, classes]:
    the highest score of a row counts, and its column is the class."""
    tensors: tuple[tuple[str, str], ...] = ()
    """Pairs (output, input that it feeds); empty: outputs feed inputs with the same name."""
    quads: str = ""
    """Upstream output with quads, instead of boxes; empty: boxes."""
    turn: BoxChoice | None = None
    """Selects the crops of quads to turn by 180 degrees, by class and score."""

    @property
    def selection(self) -> tuple[object, ...]:
        """Key of the edge's rows; edges with equal keys bring the same rows. Empty: all rows of the
        upstream stage."""
        if not self.each and self.when is None:
            return ()
        all_crops = self.each == CROP and self.when is None
        outputs = (self.quads or self.boxes, self.scores, self.classes)
        return (self.upstream, self.each, self.when, *outputs[: 0 if all_crops else None])


@dataclass(frozen=True)
class Pipeline:
    """Stages and edges. Raises PipelineError, which names the key, if they are invalid."""

    name: str
    stages: tuple[PipelineStage, ...]
    edges: tuple[Edge, ...] = ()
    """All edges; those out of one stage are in the order of its yields."""
    slo: float | None = None
    """Deadline of a frame in seconds if its client states none."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise PipelineError("stages", "expected at least one stage")
        if len(self.stages) > MOST_STAGES:
            raise PipelineError("stages", f"expected at most {MOST_STAGES}, got {len(self.stages)}")
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(f"stages.{name}", "stated twice")
        pairs = set()
        for number, edge in enumerate(self.edges):
            key = f"edges[{number}]"
            for end, name in (("from", edge.upstream), ("to", edge.downstream)):
                if name not in names:
                    hint = suggestion(name, names)
                    raise PipelineError(f"{key}.{end}", f"no such stage; {hint}")
            if edge.each not in ("", BOX, CROP):
                expected = f"expected 'box', 'crop' or nothing, got {edge.each!r}"
                raise PipelineError(f"{key}.each", expected)
            if (edge.upstream, edge.downstream) in pairs:
                stage_pair = f"{edge.upstream} and {edge.downstream}"
                raise PipelineError(key, f"there is already an edge between {stage_pair}")
            pairs.add((edge.upstream, edge.downstream))
        if len(self.order) < len(names):
            cycle = ", ".join(name for name in names if name not in self.order)
            raise PipelineError("edges", f"expected no cycle, found one through {cycle}")
        sources = [name for name in names if not self.into[name]]
        if len(sources) > 1:
            listed = ", ".join(sources)
            raise PipelineError("stages", f"expected one stage without an edge to it, got {listed}")
        self._check_joins()

    def _check_joins(self) -> None:
        """Check that the edges into a join deliver the same rows: all of them were selected from
        the same stages in the same way."""
        rows: dict[str, tuple[object, ...]] = {self.source: ()}
        for name in self.order[1:]:
            into = self.into[name]
            row_origins = [(*rows[edge.upstream], *edge.selection) for edge in into]
            rows[name] = row_origins[0]
            for edge, origins in zip(into, row_origins, strict=True):
                key = f"edges[{self.edges.index(edge)}]"
                if edge.each and any(peer.each for peer in into if peer is not edge):
                    raise PipelineError(f"{key}.each", f"{name} gets crops from one stage only")
                if origins != row_origins[0]:
                    message = f"{into[0].upstream} and {edge.upstream} yield different rows"
                    raise PipelineError(key, f"{message}, so they cannot both feed {name}")

    @cached_property
    def by_name(self) -> Mapping[str, PipelineStage]:
        return MappingProxyType({stage.name: stage for stage in self.stages})

    @cached_property
    def out_of(self) -> Mapping[str, tuple[Edge, ...]]:
        """The edges from each stage, in the pipeline's order."""
        return {s.name: tuple(e for e in self.edges if e.upstream == s.name) for s in self.stages}

    @cached_property
    def into(self) -> Mapping[str, tuple[Edge, ...]]:
        """The edges into each stage, in the pipeline's order. A stage with several is a join: every
        edge brings outputs for the same rows, and one of the edges may bring crops."""
        return {s.name: tuple(e for e in self.edges if e.downstream == s.name) for s in self.stages}

    def cut_edge(self, stage: str) -> Edge | None:
        """The edge that brings crops to `stage`; None if it gets no crops."""
        return next((edge for edge in self.into[stage] if edge.each), None)

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """By stage: the stages that feed it and the stages that it feeds."""
        return {
            name: (
                tuple(edge.upstream for edge in into),
                tuple(edge.downstream for edge in self.out_of[name]),
            )
            for name, into in self.into.items()
        }

    def upstream(self, stage: str) -> tuple[str, ...]:
        """The stages that feed `stage`."""
        return self._neighbours[stage][0]

    def downstream(self, stage: str) -> tuple[str, ...]:
        """The stages that `stage` feeds."""
        return self._neighbours[stage][1]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The stages in topological order, without stages on or behind a cycle."""
        order: list[str] = []
        feeders = {stage.name: len(self.into[stage.name]) for stage in self.stages}
        ready = [name for name, count in feeders.items() if not count]
        while ready:
            order.append(ready.pop(0))
            for name in self.downstream(order[-1]):
                feeders[name] -= 1
                if not feeders[name]:
                    ready.append(name)
        return tuple(order)

    @property
    def source(self) -> str:
        """The stage that takes the client's inputs."""
        return self.order[0]

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """The stages that feed no other."""
        return tuple(stage.name for stage in self.stages if not self.out_of[stage.name])

    @cached_property
    def branches(self) -> Mapping[str, tuple[str, ...]]:
        """By stage: the stage and everything downstream of it, in order."""
        branches = {}
        for name in self.order:
            reached = {name}
            for candidate in self.order:
                if any(before in reached for before in self.upstream(candidate)):
                    reached.add(candidate)
            branches[name] = tuple(member for member in self.order if member in reached)
        return branches

    def is_closed(self, stage: str) -> bool:
        """Whether nothing outside the branch of `stage` feeds the stages behind `stage`. Only then
        can another device run the branch alone."""
        branch = self.branches[stage]
        return all(set(self.upstream(name)) <= set(branch) for name in branch if name != stage)

"""`Pipeline`: models that answer together, under one deadline, as one model to their clients.

Stages are models; an edge hands what one stage yields to the next. A pipeline is a graph without
circles with one source, which takes what the client sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from slacktide.domain.crops import BoxChoice, Glue
from slacktide.domain.suggestions import suggestion

MOST_STAGES = 32

BOX = "box"


class PipelineError(ValueError):
    """What is stated cannot be a pipeline."""

    def __init__(self, key: str, message: str) -> None:
        """`key`: where it is stated, such as `edges[1].to`."""
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One model of a pipeline."""

    name: str
    model: str
    glue: Glue = Glue()
    """What is done to crops in front of the model, in its worker."""
    version: str | None = None
    """What its requests name as their version: the load of the model that the pipeline was checked
    against. None: the route decides."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What a stage yields goes on to another one: its outputs, or parts of the frame."""

    upstream: str
    downstream: str
    each: str = ""
    """`box`: for each box that the upstream finds, a row that is this part of the frame. Empty: the
    upstream's outputs, row by row."""
    when: BoxChoice | None = None
    """Which boxes or rows go on; None: all rows, and as many boxes as a choice has by default."""
    boxes: str = "boxes"
    scores: str = "scores"
    classes: str = "classes"
    """The upstream's outputs that say so. Of rows, `scores` may be [rows, classes]: then the
    highest counts, and which one it is."""
    tensors: tuple[tuple[str, str], ...] = ()
    """(output, input) where outputs go on; none: those that are called like an input."""


@dataclass(frozen=True)
class Pipeline:
    """Raises PipelineError, which names the key, for what cannot be."""

    name: str
    stages: tuple[PipelineStage, ...]
    edges: tuple[Edge, ...] = ()
    """Of a stage, in the order in which what it yields is counted."""
    slo: float | None = None
    """Seconds that a frame has where its client states nothing."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise PipelineError("stages", "expected one or more")
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
                    raise PipelineError(f"{key}.{end}", f"there is no such stage; {hint}")
            if edge.each not in ("", BOX):
                raise PipelineError(f"{key}.each", f"expected 'box' or nothing, got {edge.each!r}")
            if (edge.upstream, edge.downstream) in pairs:
                both = f"{edge.upstream} and {edge.downstream}"
                raise PipelineError(key, f"there is an edge between {both} already")
            pairs.add((edge.upstream, edge.downstream))
        if len(self.order) < len(names):
            circle = ", ".join(name for name in names if name not in self.order)
            raise PipelineError("edges", f"expected no circle, there is one through {circle}")
        sources = [name for name in names if not self.into[name]]
        if len(sources) > 1:
            listed = ", ".join(sources)
            raise PipelineError("stages", f"expected one stage with no edge to it, got {listed}")
        self._check_joins()

    def _check_joins(self) -> None:
        """What a join takes must be rows of the same things: those of one stage, or parts of the
        frame that were chosen alike."""
        rows: dict[str, tuple[object, ...]] = {self.source: ()}
        for name in self.order[1:]:
            into = self.into[name]
            row_origins = [
                (*rows[edge.upstream], edge.upstream, edge.each, edge.when)
                if edge.each or edge.when is not None
                else rows[edge.upstream]
                for edge in into
            ]
            rows[name] = row_origins[0]
            for edge, origins in zip(into, row_origins, strict=True):
                key = f"edges[{self.edges.index(edge)}]"
                if len(into) > 1 and edge.each:
                    message = f"{name} is fed by several stages, and can take outputs only"
                    raise PipelineError(f"{key}.each", message)
                if origins != row_origins[0]:
                    message = f"{into[0].upstream} and {edge.upstream} have not the same rows"
                    raise PipelineError(key, f"{message}, and so cannot both feed {name}")

    @cached_property
    def by_name(self) -> Mapping[str, PipelineStage]:
        return MappingProxyType({stage.name: stage for stage in self.stages})

    @cached_property
    def out_of(self) -> Mapping[str, tuple[Edge, ...]]:
        """The edges from each stage, in the pipeline's order."""
        return {s.name: tuple(e for e in self.edges if e.upstream == s.name) for s in self.stages}

    @cached_property
    def into(self) -> Mapping[str, tuple[Edge, ...]]:
        """The edges to each stage, in the pipeline's order. Several: a join, which takes the
        outputs of all of them, row by row."""
        return {s.name: tuple(e for e in self.edges if e.downstream == s.name) for s in self.stages}

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """By stage: those that feed it, and those that it feeds."""
        return {
            name: (
                tuple(edge.upstream for edge in into),
                tuple(edge.downstream for edge in self.out_of[name]),
            )
            for name, into in self.into.items()
        }

    def upstream(self, stage: str) -> tuple[str, ...]:
        """The stages that feed it."""
        return self._neighbours[stage][0]

    def downstream(self, stage: str) -> tuple[str, ...]:
        """The stages that it feeds."""
        return self._neighbours[stage][1]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The stages, each behind all that feed it; those on or behind a circle are left out."""
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
        """The stage that takes what the client sends."""
        return self.order[0]

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """The stages that feed no other."""
        return tuple(stage.name for stage in self.stages if not self.out_of[stage.name])

    @cached_property
    def branches(self) -> Mapping[str, tuple[str, ...]]:
        """By stage: itself and all that it feeds, in order."""
        branches = {}
        for name in self.order:
            reached = {name}
            for candidate in self.order:
                if any(before in reached for before in self.upstream(candidate)):
                    reached.add(candidate)
            branches[name] = tuple(member for member in self.order if member in reached)
        return branches

    def is_closed(self, stage: str) -> bool:
        """Whether nothing outside its branch feeds what is behind it: only then can another device
        run the branch by itself."""
        branch = self.branches[stage]
        return all(set(self.upstream(name)) <= set(branch) for name in branch if name != stage)

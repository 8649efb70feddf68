"""`PipelineVersion`: a pipeline as clients see it, one version of a model.

It has no replicas: its stages are versions of other models, which stay loaded while it has frames.
A frame's payload is in the arena of the source's version. Workers of stages that cut crops get
that arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from slacktide.domain.pipelines import ROWS, Edge, Pipeline
from slacktide.domain.tensors import ModelInterface, crop_input, image_input
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.pipelines import LoadedPipeline
from slacktide.models.repository.interface import config_tensors
from slacktide.models.versions import CallRoutes, LoadedPool, LoadedVersion, RouteT, VersionState


@dataclass(slots=True, eq=False, kw_only=True)
class PipelineVersion(LoadedVersion):
    """A pipeline in service. It is up if all of its stages are."""

    platform: ClassVar[str] = "ensemble"

    pipeline: Pipeline
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    """For each stage in turn, indices of its outputs in the answer; −1 stands for `rows`."""
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of each edge, by the stages at its ends."""
    first_alike: tuple[int, ...] = ()
    """For each edge, the number of the first edge that chooses the same boxes of the same stage."""
    picture: int | None = None
    """Index of the source's input that crops are cut from; None if it takes no pictures."""
    cut_inputs: dict[str, str] = field(default_factory=dict)
    """By stage: its input that workers take from the frame, as crops or whole."""
    arena_numbers: dict[str, int] = field(default_factory=dict)
    """Number by which a stage's replicas know the frames' arena, for each of `cut_inputs`."""
    pixel_frames: dict[int, int | None] = field(default_factory=dict)
    """By edge: number of frames so far, while the boxes of every frame look like pixels; None after
    a frame whose boxes do not, or after the warning."""
    sorts: tuple[bool, ...] = ()
    """By edge: whether its boxes are sorted by shape, since a stage takes crops of any width."""
    open_frames: int = 0
    """Frames whose payload may still be read."""
    withdrawn: bool = False

    @classmethod
    def of(
        cls, loaded: LoadedPipeline, generation: int, counters: ModelCounters
    ) -> PipelineVersion:
        """`counters` are kept across loads. Raises KeyError if the interface of `loaded` names an
        output that no stage has."""
        pipeline = loaded.pipeline
        source = loaded.stages[pipeline.source]
        settings = source.definition.settings
        limits = settings.limits
        cut_inputs = {
            name: cut
            for name in pipeline.order[1:]
            if (cut := loaded.tensors[name].cut(pipeline.into[name]))
        }
        if cut_inputs:
            limits = limits.model_copy(update={"rows": 1})  # one picture per frame
        slos = {"slo": loaded.slo, "max_slo": loaded.max_slo, "limits": limits}
        settings = settings.model_copy(update=slos)
        definition = replace(
            source.definition, name=pipeline.name, version=loaded.version, settings=settings
        )
        request_interface = replace(source.interface, outputs=loaded.interface.outputs)
        places = {
            f"{name}.{spec.name}": (name, index)
            for name, version in loaded.stages.items()
            for index, spec in enumerate(version.interface.outputs)
        } | {f"{name}.{ROWS}": (name, -1) for name in loaded.stages}
        return cls(
            name=pipeline.name,
            version=loaded.version,
            generation=generation,
            definition=definition,
            interface=loaded.interface,
            arena=source.arena,
            check=InputCheck(request_interface, settings, any_image=source.definition.any_image),
            counters=counters,
            text=source.text,
            state=VersionState.READY,
            pipeline=pipeline,
            stages=dict(loaded.stages),
            numbers={(e.upstream, e.downstream): n for n, e in enumerate(pipeline.edges)},
            picture=_picture(source.interface),
            cut_inputs=cut_inputs,
            first_alike=tuple(_number_of_first(pipeline.edges, edge) for edge in pipeline.edges),
            sorts=tuple(_sorts(pipeline.edges, loaded.stages)),
            layout=tuple(
                (stage, tuple(index for _, index in members))
                for stage, members in groupby(
                    (places[spec.name] for spec in loaded.interface.outputs), key=itemgetter(0)
                )
            ),
        )

    def route(self, routes: CallRoutes[RouteT]) -> RouteT:
        return routes.of_pipeline(self)

    def config(self) -> dict[str, Any]:
        """Return Triton's ModelConfig of an ensemble. It omits which tensors go where, because a
        ModelConfig cannot describe boxes."""
        steps = [
            {"model_name": version.name, "model_version": int(version.version)}
            for version in self.stages.values()
        ]
        return {
            "name": self.name,
            "platform": self.platform,
            "max_batch_size": 0,
            "input": config_tensors(self.client_interface.inputs, self.interface),
            "output": config_tensors(self.interface.outputs, self.interface),
            "ensemble_scheduling": {"step": steps},
        }

    @property
    def source(self) -> LoadedVersion:
        return self.stages[self.pipeline.source]

    @property
    def front(self) -> LoadedVersion:
        return self.source

    @property
    def rest_s(self) -> float:
        """Seconds of the slowest branch behind the source: sum of 99th percentiles for one row."""
        behind: dict[str, float] = {}
        for name in reversed(self.pipeline.order):
            after = self.pipeline.downstream(name)
            behind[name] = max(
                (self.stages[follower].p99_alone + behind[follower] for follower in after),
                default=0.0,
            )
        return behind[self.pipeline.source]

    @property
    def pool(self) -> LoadedPool:
        return self.source.pool

    @property
    def is_up(self) -> bool:
        return self.state is VersionState.READY and all(v.is_up for v in self.stages.values())

    def attach_frames(self, first: int) -> int:
        """Give stages that see the frame its arena, numbered from `first`. Returns the next
        number."""
        for number, stage in enumerate(self.cut_inputs, first):
            self.arena_numbers[stage] = number
            glue = self.pipeline.by_name[stage].glue
            datatypes = tuple([self._datatype(stage, argument) for argument in glue.takes])
            glue = replace(glue, datatypes=datatypes)
            self.stages[stage].attach(number, self.arena, glue)
        return first + len(self.cut_inputs)

    def _datatype(self, stage: str, argument: str) -> str:
        """Return the datatype of an argument of a stage's crop function."""
        return next(
            spec.datatype.wire_name
            for edge in self.pipeline.into[stage]
            for spec in self.stages[edge.upstream].interface.outputs
            if not edge.each and dict(edge.tensors or [(spec.name,) * 2]).get(spec.name) == argument
        )

    def hold(self) -> None:
        """Keep the stages loaded for one more frame."""
        self.open_frames += 1
        for version in self.stages.values():
            version.enter()

    def let_go(self) -> None:
        """Release the stages for one frame, whose payload is no longer in use."""
        self.open_frames -= 1
        if self.withdrawn and not self.open_frames:
            self._detach()
        for version in self.stages.values():
            version.leave()

    def withdraw(self) -> None:
        """Take no more frames. Frames in flight are answered."""
        self.withdrawn = True
        self.state = VersionState.UNLOADING
        if not self.open_frames:
            self._detach()

    def _detach(self) -> None:
        for stage, number in self.arena_numbers.items():
            self.stages[stage].detach(number)
        self.arena_numbers.clear()

    def _wait_for_idleness(self, seconds: float) -> None:
        """Do nothing: the source trims the arena."""


def _number_of_first(edges: Sequence[Edge], reference_edge: Edge) -> int:
    comparable = [replace(edge, downstream="", tensors=()) for edge in edges]
    return comparable.index(replace(reference_edge, downstream="", tensors=()))


def _sorts(edges: Sequence[Edge], stages: Mapping[str, LoadedVersion]) -> Iterator[bool]:
    """Yield, by edge, whether its boxes are sorted. This is the same for all edges that select the
    same boxes, because stages with the same rows may be joined."""
    for edge in edges:
        peers = [peer for peer in edges if peer.selection == edge.selection]
        checks = [stages[peer.downstream].check for peer in peers]
        yield bool(edge.each) and any(check.takes_any_width for check in checks)


def _picture(interface: ModelInterface) -> int | None:
    index = image_input(interface)
    return crop_input(interface) if index is None else index

"""`BatchGatherer`: the inputs of a batch, made of the tensors of its members.

Members lie in shared memory. Tensors are joined, padded to a common length, decoded and resized if
they are pictures, or cut out of a frame of a pipeline. The buffers are reused for each batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import NDArray

from slacktide.domain.padding import Padding
from slacktide.domain.preprocessing import PicturePlacement
from slacktide.domain.tensors import TensorSpec
from slacktide.executors.crops import CropGatherer, FrameArenas
from slacktide.executors.hand_over.tensor_io import (
    InputGatherer,
    LengthReader,
    MemberLengths,
    PaddedGatherer,
    TensorError,
)
from slacktide.executors.images import ImageGatherer
from slacktide.executors.jpeg_decoder import DAMAGED
from slacktide.executors.model_runner import ModelRunner
from slacktide.executors.ports import NO_FAULTS, CropPayload, MemberFault, Payload
from slacktide.executors.synthetic_inputs import closed_shapes

NO_ARRAYS: Mapping[int, NDArray[Any]] = MappingProxyType({})


class GatheredBatch(NamedTuple):
    """The inputs of a batch."""

    feeds: dict[str, NDArray[Any]]
    rows: list[int]
    """Number of rows of each member."""
    lengths: MemberLengths | None
    """Lengths to which padded outputs are cut, by member; None if nothing was padded."""
    faults: Mapping[int, MemberFault]
    """Why members have no rows, by their place in the batch. Ignore their outputs."""
    begin: float
    """Time at which gathering began, by `time.perf_counter`."""
    input_s: float
    """Seconds that gathering took."""
    damaged: int = 0
    """Number of decoded pictures that may be damaged."""
    placements: Sequence[PicturePlacement] = ()
    """Where the client's picture lies in each row; empty if preprocessing is not declared."""


class BatchGatherer:
    """Gathers batches for a model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        interface, padding, image = runner.interface, runner.padding, runner.image_index
        self._inputs: list[InputGatherer | PaddedGatherer | ImageGatherer]
        self._inputs = [_gatherer(spec, padding) for spec in interface.inputs]
        self._images: ImageGatherer | None = None
        if image is not None:
            spec = interface.inputs[image]
            stated = closed_shapes(runner.source).get(spec.name)
            preprocessing = None if runner.converter is None else runner.converter.preprocessing
            self._inputs[image] = self._images = ImageGatherer(spec, stated, preprocessing)
        self._lengths = None if padding is None else LengthReader(padding, interface)
        self._crops: CropGatherer | None = None

    def warmed_up(self) -> None:
        """Take over the padded outputs that the warm-up found."""
        runner = self._runner
        if self._lengths is not None and runner.padding is not None:
            self._lengths = LengthReader(runner.padding, runner.interface)

    def read_frames(self, frames: FrameArenas) -> None:
        """Accept members that are crops of these frames."""
        if self._crops is None:
            runner, stated = self._runner, closed_shapes(self._runner.source)
            converter, padding = runner.converter, runner.padding
            preprocessing = None if converter is None else converter.preprocessing
            plain, whole = self._inputs, runner.frame
            self._crops = CropGatherer(
                frames, runner.interface, plain, padding, stated, preprocessing, whole
            )

    def gather(self, members: Sequence[Payload], arena: memoryview, size: int = 0) -> GatheredBatch:
        """The inputs of `members` as one batch, valid until the next call. Arguments as in
        `ModelSession.run`.

        Raises TensorError if the members cannot form a batch of this model.
        """
        begin, damaged = time.perf_counter(), DAMAGED.count
        rows = [member.rows for member in members]
        if len(members) > 1 and not self._runner.interface.batches:
            raise TensorError("the model has no batch axis")
        crops = self._crops
        if crops is not None and CropPayload in map(type, members):
            faults: Mapping[int, MemberFault]
            array, members, faults = crops.gather(members, arena, size)
            feeds, _ = self._gather_plain(members, arena, size, sum(rows), {crops.index: array})
            placements = crops.placements
        else:
            feeds, faults = self._gather_plain(members, arena, size, sum(rows))
            placements = [] if self._images is None else self._images.placements
        feeds = self._runner.converted(feeds)
        lengths = None if self._lengths is None else self._lengths.of(members)
        input_s, damaged = time.perf_counter() - begin, DAMAGED.count - damaged
        return GatheredBatch(feeds, rows, lengths, faults, begin, input_s, damaged, placements)

    def _gather_plain(
        self,
        members: Sequence[Payload],
        arena: memoryview,
        size: int,
        rows: int,
        gathered: Mapping[int, NDArray[Any]] = NO_ARRAYS,
    ) -> tuple[dict[str, NDArray[Any]], Mapping[int, MemberFault]]:
        """Inputs and faults of members. `gathered`: inputs that were cut out of frames, by
        index."""
        images = self._images
        if images is not None:
            images.size = size
        feeds = {}
        for index, spec in enumerate(self._runner.interface.inputs):
            if index in gathered:
                feeds[spec.name] = gathered[index]
                continue
            tensors = [member.tensors[index] for member in members]
            array = self._inputs[index].gather(tensors, arena)
            if self._runner.interface.batches and array.shape[:1] != (rows,):
                raise TensorError(f"input {spec.name!r} does not have {rows} rows")
            feeds[spec.name] = array
        return feeds, NO_FAULTS if images is None else images.faults


def _gatherer(spec: TensorSpec, padding: Padding | None) -> InputGatherer | PaddedGatherer:
    padded = None if padding is None else padding.inputs.get(spec.name)
    return InputGatherer(spec) if padded is None else PaddedGatherer(spec, padded)

"""Measures the accuracy of each variant of a family on labelled images.

Variants run in a worker as in serving, so that the effects of its decoder and resizer count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slacktide.domain.tensors import ModelInterface, image_input
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.ports import Executor, Outputs, Payload, TensorRef
from slacktide.executors.timed_replica import BatchError, TimedReplica
from slacktide.models.accuracy import ImageScores
from slacktide.models.labelled.answers import score_answers
from slacktide.models.labelled.comparison import VariantAccuracy, compare
from slacktide.models.labelled.images import DataError, LabelledImage, LabelledSet
from slacktide.models.labelled.pictures import load_picture
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.repository import ModelDefinition

_ARENA_LIMIT = 1 << 30
_PATIENCE_S = 60.0
Progress = Callable[[float, str], None]


async def measure_accuracy(
    executor: Executor,
    definition: ModelDefinition,
    labelled: LabelledSet,
    *,
    cores: tuple[int, ...],
    progress: Progress = lambda share, text: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[VariantAccuracy, ...]:
    """Run every image with every variant, and return the accuracies, smallest variant first. Raises
    DataError, and MeasuringError if a file cannot run."""
    settings = definition.settings.variants
    if settings is None:
        raise DataError(f"{definition.name} has no variants to compare")
    names, images = settings.names, labelled.images
    scores: dict[str, ImageScores] = {}
    for number, name in enumerate(names):
        variant_definition = definition.of_variant(name)
        arena = Arena(_ARENA_LIMIT, name="slacktide-accuracy")
        source = source_of(definition if variant_definition.image_size else variant_definition)
        device = definition.settings.device
        replica = TimedReplica(executor, source, cores, device, arena, clock, _PATIENCE_S)
        try:
            interface = (await replica.ready()).interface
            replica.size = variant_definition.image_size
            answers = []
            for index, image in enumerate(images):
                share = (number + index / len(images)) / len(names)
                progress(share, f"variant {name}, image {index + 1} of {len(images)}")
                answers.append(await _answer(replica, arena, interface, image))
        finally:
            replica.close()
            arena.close()
        progress((number + 1) / len(names), f"variant {name}, scores")
        scores[name] = score_answers(answers, images, interface, settings.output)
    compared = compare(scores, labelled)
    progress(1.0, "done")
    return compared


async def _answer(
    replica: TimedReplica, arena: Arena, interface: ModelInterface, image: LabelledImage
) -> Outputs:
    if image_input(interface) is None or len(interface.inputs) != 1:
        raise DataError("expected a model whose one input is an image, uint8 [-1, -1, -1, 3]")
    data, shape = await asyncio.to_thread(load_picture, image)
    slot = arena.allocate(len(data))
    try:
        arena.view(slot)[:] = data
        replica.inputs = [Payload(1, (TensorRef(slot.offset, len(data), shape),))]
        await replica.run(1)
    except BatchError as error:
        raise DataError(f"{image.where}: {error}") from None
    finally:
        arena.free(Slot(slot.offset, slot.nbytes))
    if replica.faults:
        raise DataError(f"{image.where}: {next(iter(replica.faults.values()))}")
    return replica.outputs[0]

"""Chooses what runs a model's file where its settings say `backend: auto`, and checks that another
backend or precision gives nearly the same answers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from slacktide.executors.agreement import Agreement
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.repository.repository import ModelDefinition
from slacktide.profiles import LatencyTable, ProfileRecord

MOST_ERROR = 0.02
"""Largest error, relative to an output's largest magnitude, with which OpenVINO may replace ONNX
Runtime in the same precision: fast convolutions round differently."""
LEAST_AGREEMENT = 0.9
"""Least share of rows with the same class in a lower precision."""
NOTICEABLE = 1.02
"""Ratio of times below which a change of backend or precision gains nothing."""


class HasRecord(Protocol):
    """A measurement, or a stored profile."""

    @property
    def record(self) -> ProfileRecord: ...


MeasuredT = TypeVar("MeasuredT", bound=HasRecord)


def check_agreement(definition: ModelDefinition, agreement: Agreement | None) -> None:
    """Raise MeasuringError if answers differ too much to be served."""
    if agreement is None:
        return
    settings, top1 = definition.settings, agreement.top1
    if settings.precision == "fp32":
        differs = agreement.error > MOST_ERROR
    else:
        differs = top1 is not None and top1 < LEAST_AGREEMENT
    if differs or not math.isfinite(agreement.error):
        way = f"backend: {settings.backend}, precision: {settings.precision}"
        raise MeasuringError(
            f"{way}: answers differ too much from those of ONNX Runtime in fp32: {agreement}",
            permanent=True,
        )


def candidates(definition: ModelDefinition) -> tuple[ModelDefinition, ...]:
    """Return the definition with each backend that `auto` may choose; otherwise itself."""
    settings = definition.settings
    if settings.backend != "auto":
        return (definition,)
    names = ("openvino",) if settings.precision == "bf16" else ("onnxruntime", "openvino")
    return tuple(map(definition.with_backend, names))


async def fastest(
    definition: ModelDefinition,
    measure: Callable[[ModelDefinition], Awaitable[MeasuredT]],
) -> tuple[ModelDefinition, MeasuredT, str]:
    """Measure each of `candidates`. Returns the fastest, its measurement, and a sentence for the
    log; empty if there was no choice. Raises MeasuringError if none runs."""
    measured: list[tuple[ModelDefinition, MeasuredT]] = []
    notes: list[str] = []
    tried = candidates(definition)
    for candidate in tried:
        try:
            measured.append((candidate, await measure(candidate)))
        except MeasuringError as error:
            if candidate is tried[-1] and not measured:
                raise
            notes.append(f"{candidate.settings.backend} is not used: {error}")
    if len(measured) == 1:
        return *measured[0], "; ".join(notes)
    (first, first_measurement), (second, second_measurement) = measured
    ratio = speed_ratio(first_measurement.record.table, second_measurement.record.table)
    if ratio >= NOTICEABLE:
        return second, second_measurement, _chosen(second, first, ratio)
    return first, first_measurement, _chosen(first, second, 1.0 / ratio)


def _chosen(chosen: ModelDefinition, rejected: ModelDefinition, ratio: float) -> str:
    names = chosen.settings.backend, rejected.settings.backend
    return f"backend: {names[0]} is used, which takes {1.0 / ratio:.2f} of the time of {names[1]}"


def speed_ratio(table: LatencyTable, faster: LatencyTable) -> float:
    """Return how many times as fast `faster` is: the geometric mean over the batch sizes and
    numbers of cores that both tables have."""
    batches = sorted({*table.batches} & {*faster.batches})
    cores = sorted({*table.cores} & {*faster.cores})
    logs = [
        math.log(table.expected(rows, count) / faster.expected(rows, count))
        for rows in batches
        for count in cores
    ]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0

"""Finds out how outputs grow with padded inputs, from runs with inputs of different lengths.

The length of an output is that of the inputs divided by a stride. After several layers that round
up or down, it is (length + added) // stride, with 0 ≤ added < stride. Two lengths leave several
possibilities; further runs halve their number until all agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import PaddedOutput, Padding, pad_element
from slacktide.domain.tensors import TensorSpec
from slacktide.executors.onnx_runtime import ModelError

MOST_STRIDE = 256
MOST_FAILURES = 3
"""Number of refused lengths after which any remaining candidate is accepted."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the outputs of one run, by name."""


def find_padded_outputs(
    padding: Padding,
    stated: Mapping[str, PaddedOutput],
    runs: Mapping[int, Shapes],
    run: Callable[[int], Shapes | None],
) -> dict[str, PaddedOutput]:
    """The outputs to cut back, by name. Those in `padding.detected_outputs` are kept if they fit.

    `padding`: the padding that fits the model; `stated`: outputs in the configuration, which may
    not fit; `runs`: output shapes of one row by length of its inputs; `run`: runs one more length,
    and returns None if it fails. Raises ModelError if an output does not grow as stated, or not in
    this way.
    """
    outputs = dict(padding.outputs)
    if len(runs) < 2:
        return outputs
    shapes_by_length = dict(sorted(runs.items()))
    shorter, longer = min(runs), max(runs)
    for name, before in runs[shorter].items():
        after = runs[longer][name]
        output = outputs.get(name)
        if output is None:
            if before == after or name in stated:  # the check of the file reports what is wrong
                continue
            pairs = enumerate(zip(before, after, strict=False))
            axes = [axis for axis, (size, longer_size) in pairs if size != longer_size]
            if len(axes) != 1 or len(before) != len(after) or not axes[0]:
                raise ModelError(
                    f"output {name!r} is {list(before)} for inputs of length {shorter} and "
                    f"{list(after)} for {longer}: state the axis to cut back as outputs.{name}.pad"
                )
            output = PaddedOutput(axes[0])
        sizes = {length: shapes[name][output.axis] for length, shapes in shapes_by_length.items()}
        earlier = padding.detected_outputs.get(name)
        if earlier is None or earlier not in fitting_outputs(output, sizes):
            earlier = _the_fitting(name, output, sizes, run)
        outputs[name] = earlier
    return outputs


def _the_fitting(
    name: str,
    output: PaddedOutput,
    sizes: dict[int, int],
    run: Callable[[int], Shapes | None],
) -> PaddedOutput:
    """The stride and rounding that explain the output's `sizes`, by length of the inputs."""
    longest = max(sizes)
    failing: list[int] = []
    candidates = fitting_outputs(output, sizes)
    while len(failing) < MOST_FAILURES:
        length = telling_length(candidates, longest, failing)
        if length is None:
            break
        shapes = run(length)
        if shapes is None:
            failing.append(length)
            continue
        sizes[length] = shapes[name][output.axis]
        candidates = fitting_outputs(output, sizes)
    if candidates:
        return candidates[0]
    lengths = ", ".join(f"{size} for inputs of {length}" for length, size in sizes.items())
    if output.stride is not None:
        raise ModelError(
            f"outputs.{name}.pad.stride: {output.stride} does not fit axis {output.axis}, which is "
            f"{lengths}"
        )
    raise ModelError(
        f"outputs.{name}.pad: expected an axis as long as the inputs divided by a stride; axis "
        f"{output.axis} is {lengths}"
    )


def fitting_outputs(output: PaddedOutput, sizes: Mapping[int, int]) -> list[PaddedOutput]:
    """Strides and roundings that explain the output's `sizes` by length of the inputs, the smallest
    stride first. If the stride is stated, no other is tried."""
    strides: Sequence[int] = range(1, MOST_STRIDE + 1)
    if output.stride is not None:
        strides = (output.stride,)
    candidates: list[PaddedOutput] = []
    for stride in strides:
        least, most = 0, stride - 1
        for length, size in sizes.items():
            least = max(least, size * stride - length)
            most = min(most, (size + 1) * stride - length - 1)
        candidates += [PaddedOutput(output.axis, stride, added) for added in range(least, most + 1)]
    return candidates


def telling_length(
    candidates: Sequence[PaddedOutput], longest: int, failing: Collection[int] = ()
) -> int | None:
    """Return the input length to try next: at most `longest`, none of the `failing`, and such that
    its outputs split the candidates most evenly (ties: the longest). None if all candidates
    agree."""
    groups = {
        length: max(Counter(candidate.length(length) for candidate in candidates).values())
        for length in {
            *range(max(1, longest - MOST_STRIDE), longest + 1),
            *range(1, longest, 1 + longest // MOST_STRIDE),
        }
        if candidates and length not in failing
    }
    best = min(groups, key=lambda length: (groups[length], -length), default=None)
    return None if best is None or groups[best] == len(candidates) else best


def padded_feeds(
    padding: Padding, specs: Sequence[TensorSpec], feeds: Mapping[str, NDArray[Any]], length: int
) -> dict[str, NDArray[Any]]:
    """Inputs `feeds`, padded to this length."""
    padded = dict(feeds)
    for spec in specs:
        if (stated := padding.inputs.get(spec.name)) is not None:
            array, axis = feeds[spec.name], stated.axis
            shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
            padded[spec.name] = np.full(shape, pad_element(spec.datatype, stated.value))
            padded[spec.name][(slice(None),) * axis + (slice(array.shape[axis]),)] = array
    return padded


def largest_change(
    alone: Mapping[str, NDArray[Any]],
    padded: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, PaddedOutput],
) -> tuple[float, str]:
    """The largest change by padding, as a share of the output's largest magnitude, and that output.
    `alone` and `padded` have the outputs of one row; the padded outputs are cut back here."""
    changes = [(0.0, "")]
    for name, array in alone.items():
        padded_rows = padded[name]
        if (cut := outputs.get(name)) is not None:
            padded_rows = padded_rows[(slice(None),) * cut.axis + (slice(array.shape[cut.axis]),)]
        if array.dtype == object or array.shape != padded_rows.shape or not array.size:
            continue
        wide, padded_rows = array.astype(np.float64), padded_rows.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.nanmax(np.abs(wide - padded_rows), initial=0.0)
            changes.append((float(change / max(np.nanmax(np.abs(wide)), 1e-30)), name))
    return max(changes)

"""Finds out how outputs grow with padded inputs, from runs with inputs of different lengths.

The length of an output is that of the inputs divided by a stride, rounded up or down. Two lengths
often leave several possibilities; a run with a length about which these disagree decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slacktide.domain.padding import PaddedOutput, Padding
from slacktide.executors.onnx_runtime import ModelError

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the outputs of one run, by name."""


def find_padded_outputs(
    padding: Padding,
    stated: Mapping[str, PaddedOutput],
    runs: Mapping[int, Shapes],
    run: Callable[[int], Shapes | None],
) -> dict[str, PaddedOutput]:
    """The outputs to cut back, by name.

    `padding`: the padding that fits the model; `stated`: outputs in the configuration, which may
    not fit; `runs`: output shapes of one row by length of its inputs; `run`: runs one more length,
    and returns None if it fails. Raises ModelError if an output grows in another way than stated,
    or in no such way.
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
            axes = [axis for axis, (less, more) in pairs if less != more]
            if len(axes) != 1 or len(before) != len(after) or not axes[0]:
                raise ModelError(
                    f"output {name!r} is {list(before)} for inputs of length {shorter} and "
                    f"{list(after)} for {longer}: state the axis to cut back as outputs.{name}.pad"
                )
            output = PaddedOutput(axes[0])
        sizes = {length: shapes[name][output.axis] for length, shapes in shapes_by_length.items()}
        outputs[name] = _the_fitting(name, output, sizes, run)
    return outputs


def _the_fitting(
    name: str,
    output: PaddedOutput,
    sizes: dict[int, int],
    run: Callable[[int], Shapes | None],
) -> PaddedOutput:
    """The stride and rounding with which inputs have outputs of these `sizes`, by length."""
    longest = max(sizes)
    candidates = fitting_outputs(output, sizes)
    while (length := telling_length(candidates, longest)) is not None:
        shapes = run(length)
        if shapes is None:
            break  # the model takes certain lengths only, about which the candidates agree
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
    stride first. A stated stride is the only one."""
    longest = max(sizes)
    size = sizes[longest]
    strides: Sequence[int] = range(max(1, longest // (size + 1)), longest // max(1, size - 1) + 1)
    if output.stride is not None:
        strides = (output.stride,)
    candidates = (
        PaddedOutput(output.axis, stride, up) for stride in strides for up in (True, False)
    )
    return [
        candidate
        for candidate in candidates
        if all(candidate.length(length) == size for length, size in sizes.items())
    ]


def telling_length(candidates: Sequence[PaddedOutput], longest: int) -> int | None:
    """The longest length, up to `longest`, about which the candidates disagree; None if there is
    none."""
    return next(
        (
            length
            for length in range(longest, 0, -1)
            if len({candidate.length(length) for candidate in candidates}) > 1
        ),
        None,
    )

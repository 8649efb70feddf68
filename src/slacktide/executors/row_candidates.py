"""Shapes of rows to try, by common conventions, for free axes without a configured size.

A free axis has a role. *Rows* (the first axis of a model without a batch axis, or one with such a
name) are 1. An input with four axes and 1, 3 or 4 channels, first or last, is an image, with
*height* and *width*. Any other axis is a *length*, 128 or 512. Axes with the same name have the
same size. Only a run shows which shapes are right, so these are candidates, the likeliest first.
The last one has 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.executors.ports import RowShapes
from slacktide.executors.synthetic_inputs import row_bytes

LENGTHS = (128, 512)
IMAGE_SIZES = ((224, 224), (320, 320), (640, 640), (48, 320), (32, 320))
"""Height and width, for classifiers, detectors, and recognisers of lines of text."""
_LINE = 128
"""An image with a fixed height below this is a line of text, which is wide."""
_CHANNELS = frozenset({1, 3, 4})
_ROW_NAMES = frozenset({"batch", "batch_size", "batchsize", "bs", "rows"})
_MOST_BYTES = 64 << 20
_MOST = 32

Group = str | tuple[str, int]
"""Axes that share a size: all axes of a name, or one unnamed axis, as (input, number)."""

AxisNames = Mapping[str, Sequence[str | None]]
"""Names of the axes of a row, by input; None for an axis without a name."""


def candidate_rows(
    interface: ModelInterface,
    axes: RowShapes,
    names: AxisNames,
    stated_sizes: Sequence[tuple[int, int]] = (),
) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of rows to try, in order: at most 32, none above 64 MiB but the last.

    `axes`: axes of a row of each input, −1: open. `stated_sizes`: heights and widths that the file
    names. Empty if no axis is open.
    """
    if not any(-1 in shape for shape in axes.values()):
        return []
    images = {spec.name: _image_axes(spec, interface) for spec in interface.inputs}
    groups = _groups(axes, names)
    lengths = _lengths(interface, names, groups, images)
    short: list[set[Group]] = [set(), *({group} for group in reversed(lengths)), {*lengths}]
    sizes = _sizes(axes, images, stated_sizes)
    candidates: dict[tuple[tuple[int, ...], ...], None] = {}
    for length, unit_groups, size in product(LENGTHS, short, sizes):
        shapes = {name: list(shape) for name, shape in axes.items()}
        for (name, axis), group in groups.items():
            if axis in images[name]:
                shapes[name][axis] = (*size, 3)[images[name].index(axis)]
            else:
                shapes[name][axis] = length if group in lengths and group not in unit_groups else 1
        nbytes = sum(row_bytes(spec, tuple(shapes[spec.name])) for spec in interface.inputs)
        if nbytes <= _MOST_BYTES:
            candidates.setdefault(tuple(map(tuple, shapes.values())))
    last = tuple(tuple(1 if n < 0 else n for n in shape) for shape in axes.values())
    rows = [row for row in candidates if row != last][: _MOST - 1]
    return [dict(zip(axes, row, strict=True)) for row in (*rows, last)]


def _groups(axes: RowShapes, names: AxisNames) -> dict[tuple[str, int], Group]:
    """The group of each free axis, by input and number."""
    return {
        (name, axis): names[name][axis] or (name, axis)
        for name, shape in axes.items()
        for axis, size in enumerate(shape)
        if size < 0
    }


def _lengths(
    interface: ModelInterface,
    names: AxisNames,
    groups: Mapping[tuple[str, int], Group],
    images: Mapping[str, Sequence[int]],
) -> dict[Group, None]:
    """Groups of free axes that are lengths, in order."""
    lengths: dict[Group, None] = {}
    for (name, axis), group in groups.items():
        is_rows = axis == 0 and not interface.batches
        is_rows = is_rows or str(names[name][axis]).lower() in _ROW_NAMES
        if axis not in images[name] and not is_rows:
            lengths.setdefault(group)
    return lengths


def _image_axes(spec: TensorSpec, interface: ModelInterface) -> tuple[int, ...]:
    """Axes of a row that are an image's height, width and, if open, channels; empty if the input is
    no image."""
    if len(spec.shape) != 4:
        return ()
    lead = len(spec.shape) - len(interface.row_axes(spec))
    if spec.shape[1] in _CHANNELS:
        return (2 - lead, 3 - lead)
    if spec.shape[3] in _CHANNELS:
        return (1 - lead, 2 - lead)
    return (2 - lead, 3 - lead, 1 - lead) if spec.shape[1:] == (-1, -1, -1) else ()


def _sizes(
    axes: RowShapes, images: Mapping[str, tuple[int, ...]], stated: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Heights and widths to try: first the file's, then those that a fixed height suggests."""
    extents = [axes[name][axis] for name, two in images.items() for axis in two[:2]]
    if -1 not in extents:
        return [IMAGE_SIZES[0]]  # no image has open axes, so the size does not matter
    fixed = next((size for size in extents if size > 0), None)
    likely = [] if fixed is None else [(fixed, fixed if fixed >= _LINE else 320)]
    return list(dict.fromkeys((*stated, *likely, *IMAGE_SIZES)))

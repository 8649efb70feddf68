"""Single road users, cropped from rendered street scenes as a pipeline crops them.

These are the inputs of the classifiers behind a detector: vehicles with brand emblem and plate, and
people in coats, who move to the left or to the right. Boxes are slightly wrong, like those of a
detector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import crop_extent, crop_width
from slacktide.executors.pictures import resize_into
from slacktide.lab.examples.street import BRANDS, CHARACTERS, CLOTHING, RoadUser, Street

FRAME: Final = 1216
"""Height and width of the scenes in pixels: twice the detector's input, so that plates are
legible."""

LEAST_HEIGHT: Final = 36
"""Minimum height, in pixels, of a vehicle or person that can be classified."""

_ERROR: Final = 0.03
"""Standard deviation of the error of a box's edges, as a share of its size."""

Picture = NDArray[np.uint8]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class CropTask:
    """The question that one model answers about a road user."""

    answers: tuple[str, ...]
    of: Callable[[RoadUser], str | None]
    """Returns the answer (for a plate, its characters); None: the question does not apply."""
    height: int
    width: int | None
    """None: the width follows from the box."""

    def label(self, user: RoadUser) -> int | list[int]:
        """Return the index of the answer; for a plate, the index of each character."""
        answer = self.of(user) or ""
        if self.width is None:
            return [self.answers.index(character) for character in answer]
        return self.answers.index(answer)


QUESTIONS: Final = {
    "brand": CropTask(BRANDS, lambda user: user.brand, 64, 64),
    "plate": CropTask(tuple(CHARACTERS), lambda user: user.plate, 64, None),
    "clothing": CropTask(tuple(CLOTHING), lambda user: user.clothing, 48, 48),
    "direction": CropTask(
        ("left", "right"), lambda user: user.direction if user.clothing else None, 48, 48
    ),
}
"""Questions by the name of the model that answers them."""


def crops(
    question: CropTask, rng: np.random.Generator, *, most: int = 6
) -> Iterator[tuple[Picture, RoadUser, Box]]:
    """Yield (crop (height, width, 3), road user, box of the crop in fractions of the scene) for
    road users that are large enough and to which `question` applies, at most `most` per scene.
    Endless; the seeds of the scenes come from `rng`."""
    height = question.height
    while True:
        scene = Street(int(rng.integers(2**62))).scene(int(rng.integers(100)), FRAME)
        users = [
            user
            for user in scene.road_users
            if question.of(user) and (user.box[3] - user.box[1]) * FRAME >= LEAST_HEIGHT
        ]
        for place in rng.permutation(len(users))[:most]:
            user = users[place]
            box = np.array(user.box) * FRAME
            sides = np.tile(box[2:] - box[:2], 2)
            box = (box + rng.normal(0, _ERROR, 4) * sides) / FRAME
            extent = crop_extent(box, FRAME, FRAME)
            if extent is None:
                continue
            x0, y0, x1, y1 = extent
            width = question.width or crop_width(extent, height)
            crop = np.empty((height, width, 3), np.uint8)
            resize_into(scene.picture[y0:y1, x0:x1], crop)
            yield crop, user, (x0 / FRAME, y0 / FRAME, x1 / FRAME, y1 / FRAME)

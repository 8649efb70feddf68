"""Road users one by one, cut out of rendered street scenes as a pipeline would cut them out.

What the classifiers behind a detector see: vehicles with the emblem of their brand and their plate,
people in their coats, on their way to the left or to the right. Boxes are a little off, as those of
a detector are.
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
"""Height and width of the scenes, pixels: twice what the detector looks at, so that plates can be
read."""

LEAST_HEIGHT: Final = 36
"""Pixels of a vehicle or person that can be judged."""

_ERROR: Final = 0.03
"""Standard deviation of a box's edges, by its size."""

Picture = NDArray[np.uint8]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class CropTask:
    """Question that one model is to answer about a road user."""

    answers: tuple[str, ...]
    of: Callable[[RoadUser], str | None]
    """The answer, or one for each character; None: it is not asked of this one."""
    height: int
    width: int | None
    """None: it follows from the box."""

    def label(self, user: RoadUser) -> int | list[int]:
        """Index of the answer; of each character of a plate."""
        said = self.of(user) or ""
        if self.width is None:
            return [self.answers.index(character) for character in said]
        return self.answers.index(said)


QUESTIONS: Final = {
    "brand": CropTask(BRANDS, lambda user: user.brand, 64, 64),
    "plate": CropTask(tuple(CHARACTERS), lambda user: user.plate, 64, None),
    "clothing": CropTask(tuple(CLOTHING), lambda user: user.clothing, 48, 48),
    "direction": CropTask(
        ("left", "right"), lambda user: user.direction if user.clothing else None, 48, 48
    ),
}
"""By the name of the model that answers it."""


def crops(
    question: CropTask, rng: np.random.Generator, *, most: int = 6
) -> Iterator[tuple[Picture, RoadUser, Box]]:
    """Road users that a question can be asked of and that are large enough, at most so many of a
    scene, each as (height, width, 3), and what was cut out, in fractions of the scene. Without end,
    of seeds from `rng`."""
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

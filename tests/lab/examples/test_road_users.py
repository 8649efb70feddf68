"""Road users cut out of scenes: large enough to be judged, and labelled as they were drawn."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from slacktide.lab.examples.road_users import FRAME, LEAST_HEIGHT, QUESTIONS, crops
from slacktide.lab.examples.street import KINDS


@pytest.mark.parametrize("name", QUESTIONS)
def test_crops_fit_their_box_and_their_question(name: str) -> None:
    question = QUESTIONS[name]
    people = {KINDS.index("pedestrian"), KINDS.index("bicycle")}
    widths = set()
    for crop, user, box in islice(crops(question, np.random.default_rng(5)), 24):
        assert (user.kind in people) == (name in ("clothing", "direction")) or (
            KINDS[user.kind] == "motorcycle"
        )
        height, width = (box[3] - box[1]) * FRAME, (box[2] - box[0]) * FRAME
        assert height >= 0.7 * LEAST_HEIGHT
        assert crop.shape[0] == question.height
        if question.width is None:
            assert crop.shape[1] == round(question.height * width / height)
            widths.add(crop.shape[1])
        else:
            assert crop.shape[1] == question.width
        middle = (np.array(user.box[:2]) + user.box[2:]) / 2
        assert (box[:2] < middle).all()
        assert (middle < box[2:]).all()
        label = question.label(user)
        indices = [label] if isinstance(label, int) else label
        assert "".join(question.answers[index] for index in indices) == question.of(user)
    assert len(widths) != 1


def test_characters_of_plates_are_told_apart() -> None:
    labels = [
        QUESTIONS["plate"].label(user)
        for _, user, _ in islice(crops(QUESTIONS["plate"], np.random.default_rng(6)), 40)
    ]
    assert np.array(labels).shape == (40, 4)
    assert len({tuple(np.atleast_1d(label)) for label in labels}) > 30

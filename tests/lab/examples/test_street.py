"""Street scenes: exact boxes, the same by seed at each size, videos without jumps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.lab.examples.street import (
    BRANDS,
    CHARACTERS,
    CLOTHING,
    KINDS,
    SIZE,
    RoadUser,
    Scene,
    Street,
)

seeds = st.integers(0, 2**40)


def drawn(seed: int, frame: int, scene: Scene) -> NDArray[np.bool_]:
    """Which pixels (size, size) anything that moves was drawn on."""
    size = len(scene.picture)
    return (scene.picture != Street(seed, traffic=0).scene(frame, size).picture).any(2)


def pixel_box(user: RoadUser, size: int) -> tuple[int, ...]:
    return tuple(round(edge * size) for edge in user.box)


def identity(user: RoadUser) -> tuple[object, ...]:
    return user.kind, user.direction, user.brand, user.plate, user.clothing


@pytest.mark.parametrize("size", [SIZE, 1280])
def test_a_box_is_as_small_as_what_is_drawn(size: int) -> None:
    for seed in range(12):
        scene = Street(seed, traffic=0.15).scene(size=size)
        changed = drawn(seed, 0, scene)
        for user in scene.road_users:
            x0, y0, x1, y1 = pixel_box(user, size)
            np.testing.assert_allclose(np.array(user.box) * size, (x0, y0, x1, y1), atol=1e-3)
            inside = changed[y0:y1, x0:x1]
            edges = inside[0], inside[-1], inside[:, 0], inside[:, -1]
            assert all(edge.any() for edge in edges)
            assert inside.mean() > 0.1


@pytest.mark.parametrize("size", [SIZE, 1280])
def test_nothing_is_drawn_outside_the_boxes(size: int) -> None:
    """But those cut off at the edges, which have no box; here none hides another."""
    count = 0
    for seed in range(30):
        scene = Street(seed, traffic=0.04).scene(size=size)
        changed = drawn(seed, 0, scene)
        for user in scene.road_users:
            x0, y0, x1, y1 = pixel_box(user, size)
            changed[y0:y1, x0:x1] = False
        edge = size // 6
        assert not changed[:, edge:-edge].any()
        count += len(scene.road_users)
    assert count > 60


@settings(max_examples=10)
@given(seed=seeds, frame=st.integers(0, 10_000))
def test_a_scene_follows_from_its_seed_and_frame(seed: int, frame: int) -> None:
    video = Street(seed)
    video.scene(frame + 3)
    once, again = video.scene(frame), Street(seed).scene(frame)
    assert (once.picture == again.picture).all()
    assert once.road_users == again.road_users
    assert (once.picture != Street(seed + 1).scene(frame).picture).any()


def test_a_larger_picture_shows_the_same_road_users() -> None:
    for seed in range(8):
        small, large = Street(seed).scene(20), Street(seed).scene(20, 1280)
        assert large.picture.shape == (1280, 1280, 3)
        assert [*map(identity, small.road_users)] == [*map(identity, large.road_users)]
        # Each edge is rounded to a pixel of the smaller picture, and drawn in steps of about one.
        np.testing.assert_allclose(small.boxes(), large.boxes(), atol=2.5 / SIZE)


def test_road_users_of_a_video_move_on_without_jumps() -> None:
    followed = 0
    for seed in range(6):
        video = Street(seed, traffic=0.3)
        frames = [video.scene(frame) for frame in range(400, 404)]
        for before, after in pairwise(frames):
            for user in before.road_users:
                x0, _, x1, y1 = user.box
                if not 0.2 < (x0 + x1) / 2 < 0.8:
                    continue
                ways = [
                    later.box[0] - x0
                    for later in after.road_users
                    if identity(later) == identity(user) and abs(later.box[3] - y1) < 1e-6
                ]
                way = min(ways, key=abs)
                assert abs(way) < 0.08
                assert way * (1 if user.direction == "right" else -1) > -2 / SIZE
                followed += 1
    assert followed > 200


def test_nothing_appears_in_the_middle_of_a_video() -> None:
    """What is new in a frame has come in from an edge."""
    for seed in range(4):
        video = Street(seed, traffic=0.5)
        earlier = [(*identity(user), user.box[3]) for user in video.scene(0).road_users]
        for frame in range(1, 40):
            now = video.scene(frame).road_users
            for user in now:
                if (*identity(user), user.box[3]) not in earlier:
                    assert min(user.box[0], 1 - user.box[2]) < 0.09
            earlier += [(*identity(user), user.box[3]) for user in now]


def test_vehicles_carry_brands_and_plates_and_people_wear_colours() -> None:
    users = [user for seed in range(40) for user in Street(seed).scene().road_users]
    assert {user.kind for user in users} == set(range(len(KINDS)))
    for user in users:
        if KINDS[user.kind] in ("pedestrian", "bicycle"):
            assert (user.brand, user.plate) == (None, None)
        else:
            assert user.plate is not None
            assert len(user.plate) == 4
            assert set(user.plate) <= set(CHARACTERS)
            assert user.clothing is None
    assert {user.brand for user in users} == {*BRANDS, None}
    assert {user.clothing for user in users} == {*CLOTHING, None}
    assert {user.direction for user in users} == {"left", "right"}


def test_sizes_of_road_users_are_very_unequal() -> None:
    heights = np.concatenate([np.diff(Street(s).scene().boxes()[:, 1::2]) for s in range(20)])
    small, middle, large = np.quantile(heights * SIZE, [0.05, 0.5, 0.95])
    assert small < 8
    assert middle < 20
    assert large > 40


def test_nights_are_dark_and_rush_hours_are_busy() -> None:
    day, night = (Street(3, night=dark).scene().picture.mean() for dark in (False, True))
    assert night < day / 1.5
    counts = [
        np.mean([len(Street(seed, traffic=t).scene().road_users) for seed in range(12)])
        for t in (0.0, 0.2, 0.9)
    ]
    assert counts[0] == 0
    assert 8 < counts[1] < counts[2] / 2
    with pytest.raises(ValueError, match="traffic must be from 0 to 1"):
        Street(1, traffic=1.5)

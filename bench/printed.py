"""Pictures of text: labels, pages, scans and turned ones, in matplotlib's DejaVu.

labels   one line each, short and long
pages    lines of two sizes, dark on light or light on dark
scans    pages with noise, blur and a slight turn; `page` and `text` of scikit-image 0.26.0
turned   labels and pages turned by quarters, and labels at any angle
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SEED = 73
FONTS = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono")


def label(rng: np.random.Generator) -> Array:
    """One line of text on a plain ground, RGB."""
    from PIL import Image, ImageDraw

    dark, size = bool(rng.random() < 0.3), int(rng.integers(18, 48))
    text, type_ = _words(rng, int(rng.integers(1, 9))), _font(rng, size)
    margin = int(rng.integers(4, 30))
    width = int(type_.getlength(text)) + 2 * margin
    picture = Image.new("RGB", (width, int(1.3 * size) + 2 * margin), _shade(rng, dark))
    ImageDraw.Draw(picture).text((margin, margin), text, _shade(rng, not dark), type_)
    return np.asarray(picture)


def page(rng: np.random.Generator) -> Array:
    """Some lines of text in two sizes, RGB."""
    from PIL import Image, ImageDraw

    dark, size = bool(rng.random() < 0.2), int(rng.integers(18, 30))
    extent = (int(rng.integers(600, 1000)), int(rng.integers(500, 1200)))
    picture = Image.new("RGB", extent, _shade(rng, dark))
    draw, ink, y = ImageDraw.Draw(picture), _shade(rng, not dark), 40
    while y < extent[1] - 3 * size:
        type_ = _font(rng, size if rng.random() < 0.8 else int(1.5 * size))
        text = _words(rng, int(rng.integers(2, 11)))
        while type_.getlength(text) > extent[0] - 100:
            text = text.rpartition(" ")[0]
        draw.text((50, y), text, ink, type_)
        y += int(rng.uniform(1.8, 3.2) * size)
    return np.asarray(picture)


def scan(rng: np.random.Generator, sheets: list[Array]) -> Array:
    """A page as a scanner sees it."""
    import cv2

    sheet = sheets[int(rng.integers(len(sheets)))] if rng.random() < 0.4 else page(rng)
    high, wide = sheet.shape[:2]
    turn = cv2.getRotationMatrix2D((wide / 2, high / 2), rng.uniform(-2.5, 2.5), 1.0)
    turned = cv2.warpAffine(sheet, turn, (wide, high), borderMode=cv2.BORDER_REPLICATE)
    blurred = cv2.GaussianBlur(turned, (0, 0), rng.uniform(0.4, 1.0))
    noisy = blurred * rng.uniform(0.8, 1.05) + rng.normal(0, rng.uniform(2, 9), sheet.shape)
    return np.asarray(noisy.clip(0, 255), np.uint8)


def turned(rng: np.random.Generator) -> Array:
    import cv2

    if rng.random() < 0.6:
        upright = page(rng) if rng.random() < 0.3 else label(rng)
        return np.ascontiguousarray(np.rot90(upright, int(rng.integers(1, 4))))
    picture, angle = label(rng), rng.uniform(-180, 180)
    high, wide = picture.shape[:2]
    side = int(np.hypot(high, wide)) + 40
    move = cv2.getRotationMatrix2D((wide / 2, high / 2), angle, 1.0)
    move[:, 2] += (side - wide) / 2, (side - high) / 2
    ground = tuple(int(sample) for sample in picture[0, 0])
    return np.asarray(cv2.warpAffine(picture, move, (side, side), borderValue=ground))


def pictures(kind: str, count: int, sheets: list[Array]) -> list[bytes]:
    """PNG files."""
    import cv2

    makers: dict[str, Callable[[np.random.Generator], Array]] = {
        "labels": label, "pages": page, "scans": partial(scan, sheets=sheets), "turned": turned,
    }  # fmt: skip
    rng = np.random.default_rng([SEED, *kind.encode()])
    pictures_drawn = [makers[kind](rng) for _ in range(count)]
    return [bytes(cv2.imencode(".png", picture[:, :, ::-1])[1]) for picture in pictures_drawn]


def _font(rng: np.random.Generator, size: int) -> Any:
    from matplotlib import font_manager
    from PIL import ImageFont

    name = FONTS[int(rng.integers(len(FONTS)))]
    return ImageFont.truetype(font_manager.findfont(name), size)


def _words(rng: np.random.Generator, count: int) -> str:
    from pydoc_data.topics import topics

    words = [word for text in topics.values() for word in text.split() if word.isalnum()]
    start = int(rng.integers(len(words) - count))
    return " ".join(words[start : start + count])


def _shade(rng: np.random.Generator, dark: bool) -> tuple[int, ...]:
    low, high = (0, 80) if dark else (190, 256)
    return tuple(int(sample) for sample in rng.integers(low, high, 3))

"""Rows for models of others: rendered pages and lines of text, the machine's files, photographs.

Text is the manual that comes with Python (`pydoc_data`), type is matplotlib's DejaVu; inputs are
prepared as the models' own packages do it. Each row is drawn on its own, in no order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]

PAGE = (450, 600)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LINE = (192, 48)
"""Width and height of a line of text."""
_PHOTOGRAPHS = (
    *("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png"),
    *("gravel.png", "hubble_deep_field.jpg", "motorcycle_left.png", "rocket.jpg"),
)
_ROOTS = ("/usr/bin", "/usr/lib", "/usr/share", "/etc", sys.prefix)
_PER_SUFFIX = 40
"""Files of one kind at most, so that not all are Python's."""
_BLOCK, _ENDS, _NOTHING = 4096, 1024, 256


def pages(count: int, generator: np.random.Generator) -> Rows:
    """Pages of text [count, 3, 224, 224], turned by no, one, two or three quarters."""
    from PIL import Image, ImageDraw

    font, words, rows = _font(), _words(), []
    for _ in range(count):
        dark = bool(generator.random() < 0.15)
        page = Image.new("RGB", PAGE, _shade(generator, dark))
        draw = ImageDraw.Draw(page)
        y, size = int(generator.integers(10, 90)), int(generator.integers(10, 26))
        while y < PAGE[1] - size:
            x = int(generator.integers(20, 60))
            if generator.random() < 0.15:  # a heading, or the end of a paragraph
                y += size
                size = int(generator.integers(10, 26))
            else:
                text = _some(words, generator, 12)
                draw.text((x, y), text, font=font(size), fill=_shade(generator, not dark))
            y += int(1.4 * size)
        turned = page.rotate(90 * int(generator.integers(4)), expand=True)
        short = min(turned.size)
        size = tuple(round(side * 256 / short) for side in turned.size)
        small = np.asarray(turned.resize(size, Image.Resampling.LANCZOS), np.float32) / 255
        top, left = (small.shape[0] - 224) // 2, (small.shape[1] - 224) // 2
        small = small[top : top + 224, left : left + 224]
        noisy = small + generator.normal(0, 0.03 * generator.random(), small.shape)
        rows.append(((noisy - MEAN) / DEVIATION).transpose(2, 0, 1).astype(np.float32))
    return np.stack(rows)


def text_lines(
    count: int, generator: np.random.Generator, *, turned: bool = True
) -> Iterator[Rows]:
    """Lines of text, uint8 [height, width, 3], half of them upside down if `turned`."""
    from PIL import Image, ImageDraw

    font, words = _font(), _words()
    for _ in range(count):
        dark = bool(generator.random() < 0.3)
        height = int(generator.integers(24, 64))
        text = _some(words, generator, int(generator.integers(1, 5)))
        type_ = font(int(height * generator.uniform(0.55, 0.85)))
        width = int(type_.getlength(text)) + int(generator.integers(2, 20))
        line = Image.new("RGB", (max(8, width), height), _shade(generator, dark))
        place = (int(generator.integers(0, 8)), int(generator.integers(-2, 4)))
        ImageDraw.Draw(line).text(place, text, font=type_, fill=_shade(generator, not dark))
        if generator.random() < 0.5 and turned:
            line = line.rotate(180)
        yield np.asarray(line)


def lines(count: int, generator: np.random.Generator) -> Rows:
    """Lines of text [count, 3, 48, 192], upright or upside down; short ones are padded by zeros."""
    from PIL import Image

    rows = []
    for pixels in text_lines(count, generator):
        line = Image.fromarray(pixels)
        width = min(LINE[0], max(1, round(LINE[1] * line.width / line.height)))
        small = np.asarray(line.resize((width, LINE[1])), np.float32) / 255
        noisy = small + generator.normal(0, 0.1 * generator.random(), small.shape)
        row = np.zeros((3, LINE[1], LINE[0]), np.float32)
        row[:, :, :width] = ((noisy - 0.5) / 0.5).transpose(2, 0, 1)
        rows.append(row)
    return np.stack(rows)


def photographs(folder: Path, count: int, generator: np.random.Generator) -> Rows:
    """What a camera sees [count, 3, 224, 224] that pans and zooms over scikit-image's photographs,
    one after another, each for two to six seconds of 25 frames, and again from elsewhere."""
    from PIL import Image

    shown = [Image.open(folder / name).convert("RGB") for name in _PHOTOGRAPHS]
    rows: list[Rows] = []
    while len(rows) < count:
        photograph = shown[int(generator.integers(len(shown)))]
        length = int(generator.integers(50, 150))
        light = generator.uniform(0.8, 1.2)
        short = min(photograph.size)
        sides = short * generator.uniform(0.45, 0.95, 2)  # zooming from one to the other
        ends = generator.uniform(0.0, 1.0, (2, 2))
        for part in np.linspace(0.0, 1.0, length):
            side = sides[0] + part * (sides[1] - sides[0])
            x, y = (ends[0] + part * (ends[1] - ends[0])) * (np.array(photograph.size) - side)
            window = (float(x), float(y), float(x + side), float(y + side))
            resized = photograph.resize((224, 224), Image.Resampling.BILINEAR, window)
            noisy = light * np.asarray(resized, np.float32) + generator.normal(0, 5, (224, 224, 3))
            row = (noisy.clip(0, 255) - 127) / 128
            rows.append(row.transpose(2, 0, 1).astype(np.float32))
    return np.stack(rows[:count])


def files(count: int, generator: np.random.Generator) -> Rows:
    """Beginnings and ends of files of this machine [count, 2048], bytes as int32, 256 for none."""
    by_suffix: dict[str, list[Path]] = {}
    for path in _paths():
        by_suffix.setdefault(path.suffix.lower() or path.parent.name, []).append(path)
    chosen = []
    for suffix in sorted(by_suffix):
        paths = by_suffix[suffix]
        places = generator.permutation(len(paths))[:_PER_SUFFIX]
        chosen += [paths[at] for at in sorted(places)]
    rows: list[Rows] = []
    for at in generator.permutation(len(chosen)):
        if len(rows) == count:
            break
        try:
            rows.append(_ends(chosen[at]))
        except OSError:
            continue
    return np.stack(rows)


def _paths() -> Iterator[Path]:
    for root in _ROOTS:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if not path.is_symlink() and path.is_file() and path.stat().st_size >= 64:
                    yield path


def _ends(path: Path) -> Rows:
    """As magika 1.0.3 takes features of a file."""
    with path.open("rb") as file:
        first = file.read(_BLOCK).lstrip()[:_ENDS]
        file.seek(max(0, path.stat().st_size - _BLOCK))
        last = file.read(_BLOCK).rstrip()[-_ENDS:]
    row = np.full(2 * _ENDS, _NOTHING, np.int32)
    row[: len(first)] = np.frombuffer(first, np.uint8)
    row[2 * _ENDS - len(last) :] = np.frombuffer(last, np.uint8)
    return row


def _font() -> Callable[[int], Any]:
    from matplotlib import font_manager
    from PIL import ImageFont

    path = font_manager.findfont("DejaVu Sans")
    return cache(lambda size: ImageFont.truetype(path, size))


def _words() -> list[str]:
    from pydoc_data.topics import topics

    return [word for text in topics.values() for word in text.split() if word.isalpha()]


def _some(words: list[str], generator: np.random.Generator, count: int) -> str:
    start = int(generator.integers(len(words) - count))
    return " ".join(words[start : start + count])


def _shade(generator: np.random.Generator, dark: bool) -> tuple[int, ...]:
    low, high = (0, 90) if dark else (190, 256)
    return tuple(int(shade) for shade in generator.integers(low, high, 3))

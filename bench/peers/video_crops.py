"""Crops of a video's frames [zones, frames, side, side, 3], RGB. Runs in an environment of its own:

python video_crops.py VIDEO SIDE FILE.npy X,Y X,Y …
"""

from __future__ import annotations

import sys

import av
import numpy as np

video, size, file, *corners = sys.argv[1:]
side = int(size)
zones = [tuple(map(int, corner.split(","))) for corner in corners]
crops: list[list[np.ndarray]] = [[] for _ in zones]
with av.open(video) as container:
    for frame in container.decode(video=0):
        picture = frame.to_ndarray(format="rgb24")
        for (x, y), zone in zip(zones, crops, strict=True):
            zone.append(picture[y : y + side, x : x + side])
np.save(file, np.array(crops))

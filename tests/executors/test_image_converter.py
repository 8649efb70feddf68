"""Conversion of declared pictures while another thread converts rows for early exits."""

from __future__ import annotations

import threading

import numpy as np

from slacktide.domain.preprocessing import Preprocessing, Resize
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.image_placing import ImageConverter


def test_threads_do_not_overwrite_each_others_rows() -> None:
    spec = TensorSpec("x", Datatype.FP32, (-1, 3, 8, 8))
    preprocessing = Preprocessing(
        input="x",
        size=(8, 8),
        channels_first=True,
        colour="rgb",
        factors=(1 / 255,) * 3,
        offsets=(0.0,) * 3,
        resize=Resize.SQUASH,
        crop=1.0,
        centred=True,
        pad_value=0,
        multiple=1,
        short_side=0,
        interpolation="linear",
    )
    converter = ImageConverter(preprocessing, spec)
    served = converter.convert(np.full((2, 8, 8, 3), 255, np.uint8))
    expected = served.copy()
    black = np.zeros((2, 8, 8, 3), np.uint8)
    thread = threading.Thread(target=converter.convert, args=(black,))
    thread.start()
    thread.join()
    assert (served == expected).all()
    assert not converter.convert(black).any()

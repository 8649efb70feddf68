"""Fits are the same to the last bit, whichever kernels linear algebra takes for the processor."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from slacktide.profiles.least_squares import non_negative

FITS = """
import numpy as np
from slacktide.profiles.amdahl import fit_grid
from slacktide.profiles.distribution import weighted_sum
draw = np.random.default_rng(1)
times = draw.uniform(0.9, 1.1, (6, 4)) * np.add.outer([1, 2, 4, 8, 16, 32], [0, 3, 7, 1])
model = fit_grid((1, 2, 4, 8, 16, 32), (1, 2, 3, 4), times.tolist()).model
print([value.hex() for value in (model.gamma, model.epsilon, model.delta, model.eta)])
print(weighted_sum(draw.uniform(0, 1, 7), draw.uniform(0, 1, (7, 96))).tobytes().hex())
"""


def fits(kernel: str) -> str:
    """What a process prints in which OpenBLAS has the kernels of this processor."""
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    done = subprocess.run(
        [sys.executable, "-c", FITS], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_fits_do_not_depend_on_the_processor() -> None:
    old = fits("Nehalem")
    assert old.count("0x") == 4
    assert fits("Haswell") == old


def test_columns_that_say_the_same_share_nothing() -> None:
    """On one core γ and δ cannot be told apart: the later of the two, in the order of sets."""
    batch = np.array([1.0, 2.0, 4.0, 8.0])
    rows = np.stack([batch, np.ones(4), batch, np.ones(4)], axis=1)
    coefficients = non_negative(rows, 3.0 * batch + 1.0)
    np.testing.assert_allclose(coefficients, [0.0, 0.0, 3.0, 1.0], atol=1e-12)

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slacktide.domain import SECONDS, Options, option
from slacktide.lab.workloads import Arrivals


@dataclass(frozen=True, slots=True)
class PulsesOptions(Options):
    size: int = option(10, "Requests in a pulse.", least=1)
    every: float = option(1.0, "Time from one pulse to the next.", unit=SECONDS, above=0)


class Pulses(Arrivals):
    Options = PulsesOptions

    def __init__(self, options: PulsesOptions) -> None:
        self.size, self.every = options.size, options.every

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for start in np.arange(rng.uniform(0.0, self.every), duration, self.every):
            yield np.full(self.size, start)

    def mean_rate(self, duration: float) -> float:
        return self.size / self.every

    def describe(self) -> str:
        return f"pulses:{self.size}:every={self.every:g}s"


def test_a_pulse_comes_every_second() -> None:
    times = Pulses(PulsesOptions(size=2)).times(3.0, np.random.default_rng(0))
    assert len(times) == 6
    assert np.allclose(np.diff(times), [0.0, 1.0, 0.0, 1.0, 0.0])

"""What the Orloj paper prints: Tables 1 to 5, and what its figures show.

Source: Yu, Qiu, Jin and Chowdhury, "Orloj: Predictably Serving Unpredictable DNNs" (2022). Facts
only, as printed; a finish rate is the share of the requests that were finished in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SCHEDULERS = ("clipper", "nexus", "clockwork", "orloj")
"""The four systems of every table, in its order of columns."""

SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)
"""Deadlines of every table, as multiples of the P99 of the time alone."""


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """A line of Table 1: run times of a real task alone, in milliseconds."""

    mean_ms: float
    p99_ms: float


TASKS: Mapping[str, TaskTimes] = MappingProxyType(
    {
        "rdinet-cifar": TaskTimes(683.15, 2667.54),
        "skipnet-imagenet": TaskTimes(3.24, 5.56),
        "blenderbot-convAI": TaskTimes(200.39, 242.27),
        "blenderbot-cornell": TaskTimes(203.22, 247.04),
        "gpt-convAI": TaskTimes(79.47, 143.40),
        "gpt-cornell": TaskTimes(94.84, 161.69),
        "bart-cnn": TaskTimes(774.66, 1101.99),
        "t5-cnn": TaskTimes(552.91, 797.28),
        "fsmt-wmt": TaskTimes(189.30, 319.31),
        "mbart-wmt": TaskTimes(432.38, 729.87),
    }
)
"""Table 1, by the case names of Table 5."""

# case, SLO as a multiple of P99, then Clipper, Nexus, Clockwork, Orloj.
_TABLE_2 = """
std-0.5              1.5   0.01  0.01  0.44  0.57
std-0.5                2   0.01  0.02  0.53  0.76
std-0.5                3   0.04  0.05  0.62  0.96
std-0.5                4   0.11  0.13  0.61  0.99
std-0.5                5   0.20  0.25  0.57  1.00
std-1                1.5   0.02  0.02  0.46  0.60
std-1                  2   0.03  0.03  0.53  0.76
std-1                  3   0.10  0.10  0.55  0.97
std-1                  4   0.21  0.19  0.53  0.99
std-1                  5   0.33  0.34  0.56  1.00
std-2                1.5   0.04  0.03  0.43  0.59
std-2                  2   0.07  0.05  0.51  0.73
std-2                  3   0.19  0.13  0.55  0.97
std-2                  4   0.34  0.30  0.50  1.00
std-2                  5   0.49  0.54  0.59  1.00
std-2/0.5            1.5   0.16  0.18  0.52  0.75
std-2/0.5              2   0.28  0.32  0.59  0.83
std-2/0.5              3   0.61  0.68  0.60  0.98
std-2/0.5              4   0.89  0.93  0.59  0.96
std-2/0.5              5   0.97  1.00  0.63  1.00
std-0.5/2            1.5   0.01  0.01  0.38  0.40
std-0.5/2              2   0.01  0.02  0.50  0.61
std-0.5/2              3   0.04  0.04  0.57  0.90
std-0.5/2              4   0.08  0.09  0.66  0.97
std-0.5/2              5   0.15  0.17  0.52  0.99
"""

_TABLE_3 = """
one-modal            1.5   0.03  0.04  0.48  0.46
one-modal              2   0.10  0.13  0.55  0.74
one-modal              3   0.45  0.54  0.61  0.98
one-modal              4   0.73  0.80  0.58  1.00
one-modal              5   0.82  0.91  0.60  1.00
two-modal            1.5   0.01  0.03  0.45  0.60
two-modal              2   0.04  0.03  0.58  0.75
two-modal              3   0.13  0.14  0.51  0.97
two-modal              4   0.27  0.30  0.56  1.00
two-modal              5   0.37  0.44  0.55  1.00
three-modal          1.5   0.03  0.04  0.45  0.59
three-modal            2   0.05  0.05  0.55  0.68
three-modal            3   0.10  0.09  0.61  0.97
three-modal            4   0.18  0.23  0.60  0.99
three-modal            5   0.35  0.42  0.61  0.99
four-modal           1.5   0.03  0.05  0.46  0.59
four-modal             2   0.05  0.07  0.56  0.73
four-modal             3   0.08  0.12  0.59  0.94
four-modal             4   0.10  0.16  0.60  0.98
four-modal             5   0.14  0.19  0.60  1.00
five-modal           1.5   0.02  0.03  0.47  0.60
five-modal             2   0.02  0.03  0.55  0.73
five-modal             3   0.03  0.07  0.59  0.94
five-modal             4   0.04  0.08  0.57  0.97
five-modal             5   0.07  0.08  0.56  0.99
six-modal            1.5   0.04  0.04  0.46  0.58
six-modal              2   0.03  0.05  0.53  0.71
six-modal              3   0.06  0.08  0.53  0.92
six-modal              4   0.07  0.09  0.51  0.97
six-modal              5   0.08  0.11  0.54  0.99
seven-modal          1.5   0.03  0.05  0.43  0.59
seven-modal            2   0.04  0.05  0.51  0.73
seven-modal            3   0.08  0.09  0.54  0.93
seven-modal            4   0.10  0.12  0.52  0.98
seven-modal            5   0.12  0.15  0.54  0.99
eight-modal          1.5   0.03  0.04  0.33  0.60
eight-modal            2   0.05  0.06  0.49  0.74
eight-modal            3   0.08  0.09  0.43  0.93
eight-modal            4   0.09  0.13  0.52  0.97
eight-modal            5   0.11  0.14  0.50  0.99
"""

_TABLE_4 = """
inception-imagenet   1.5   0.01  0.01  0.16  0.41
inception-imagenet     2   0.31  0.30  0.58  0.48
inception-imagenet     3   0.86  0.88  0.84  0.84
inception-imagenet     4   0.96  0.97  0.82  0.99
inception-imagenet     5   0.98  0.98  0.83  0.99
resnet-imagenet      1.5   0.01  0.00  0.30  0.42
resnet-imagenet        2   0.15  0.15  0.59  0.48
resnet-imagenet        3   0.62  0.64  0.77  0.85
resnet-imagenet        4   0.89  0.91  0.88  0.98
resnet-imagenet        5   0.95  0.96  0.87  0.99
"""

_TABLE_5 = """
blenderbot-convAI    1.5   0.05  0.06  0.43  0.45
blenderbot-convAI      2   0.18  0.21  0.61  0.65
blenderbot-convAI      3   0.56  0.63  0.64  0.74
blenderbot-convAI      4   0.71  0.81  0.65  0.81
blenderbot-convAI      5   0.75  0.87  0.65  0.81
blenderbot-cornell   1.5   0.06  0.06  0.43  0.44
blenderbot-cornell     2   0.20  0.20  0.60  0.68
blenderbot-cornell     3   0.54  0.57  0.62  0.75
blenderbot-cornell     4   0.71  0.74  0.64  0.81
blenderbot-cornell     5   0.74  0.77  0.64  0.82
gpt-convAI           1.5   0.39  0.38  0.39  0.36
gpt-convAI             2   0.79  0.83  0.57  0.64
gpt-convAI             3   0.91  0.99  0.61  0.86
gpt-convAI             4   0.92  1.00  0.63  0.97
gpt-convAI             5   0.92  1.00  0.61  0.98
gpt-cornell          1.5   0.45  0.44  0.46  0.44
gpt-cornell            2   0.84  0.86  0.65  0.68
gpt-cornell            3   0.94  1.00  0.73  0.97
gpt-cornell            4   0.94  1.00  0.73  0.99
gpt-cornell            5   0.95  1.00  0.74  1.00
bart-cnn             1.5   0.12  0.11  0.44  0.46
bart-cnn               2   0.36  0.36  0.46  0.71
bart-cnn               3   0.73  0.73  0.46  0.97
bart-cnn               4   0.78  0.79  0.44  0.99
bart-cnn               5   0.80  0.81  0.44  1.00
t5-cnn               1.5   0.48  0.46  0.47  0.49
t5-cnn                 2   0.86  0.84  0.50  0.74
t5-cnn                 3   0.99  1.00  0.50  1.00
t5-cnn                 4   0.99  1.00  0.52  1.00
t5-cnn                 5   0.99  1.00  0.51  1.00
fsmt-wmt             1.5   0.04  0.04  0.45  0.45
fsmt-wmt               2   0.21  0.23  0.50  0.59
fsmt-wmt               3   0.63  0.65  0.51  0.88
fsmt-wmt               4   0.73  0.76  0.53  0.93
fsmt-wmt               5   0.75  0.79  0.54  0.95
mbart-wmt            1.5   0.07  0.10  0.38  0.47
mbart-wmt              2   0.28  0.30  0.36  0.59
mbart-wmt              3   0.71  0.73  0.35  0.91
mbart-wmt              4   0.76  0.78  0.36  0.96
mbart-wmt              5   0.78  0.80  0.35  0.98
rdinet-cifar         1.5   0.61  0.61  0.48  0.49
rdinet-cifar           2   0.98  0.99  0.47  0.84
rdinet-cifar           3   0.99  1.00  0.48  1.00
rdinet-cifar           4   0.99  1.00  0.48  1.00
rdinet-cifar           5   0.99  1.00  0.48  1.00
skipnet-imagenet     1.5   0.00  0.00  0.05  0.24
skipnet-imagenet       2   0.00  0.03  0.14  0.62
skipnet-imagenet       3   0.00  0.12  0.21  0.92
skipnet-imagenet       4   0.00  0.31  0.12  0.95
skipnet-imagenet       5   0.00  0.48  0.16  0.89
"""

DELAY_RATES_PER_MS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Figure 13, x axis: b of the anticipated delay, per millisecond. §5.6: "stable" at every one. Its
lines are plotted, not printed: the same five SLOs, the three-modal case."""

QUEUE_LENGTHS = (10, 100, 1_000, 10_000)
"""Figure 12, x axis: requests in the queue (§5.5: from 10 to 10,000, means of 100 samples)."""


def _read(text: str) -> dict[tuple[str, float, str], float]:
    return {
        (case, float(slo), scheduler): float(rate)
        for case, slo, *rates in map(str.split, text.strip().split("\n"))
        for scheduler, rate in zip(SCHEDULERS, rates, strict=True)
    }


TABLES = {
    f"table-{number}": _read(text)
    for number, text in enumerate((_TABLE_2, _TABLE_3, _TABLE_4, _TABLE_5), start=2)
}
"""Every printed finish rate, by table; in a table by case, SLO and scheduler."""


def cases(table: str) -> tuple[str, ...]:
    """The cases of `table`, in its order."""
    return tuple(dict.fromkeys(case for case, _, _ in TABLES[table]))


def printed_finish(case: str, slo: float, scheduler: str) -> float | None:
    """The printed finish rate; None where the paper prints none."""
    found = (table.get((case, slo, scheduler)) for table in TABLES.values())
    return next((rate for rate in found if rate is not None), None)

"""What is transcribed from the paper: counts, ranges, and values picked by eye."""

from __future__ import annotations

import pytest

from slacktide_papers.orloj.published import (
    SCHEDULERS,
    SLOS,
    TABLES,
    TASKS,
    cases,
    printed_finish,
)


@pytest.mark.parametrize(
    ("table", "rows"), [("table-2", 25), ("table-3", 40), ("table-4", 10), ("table-5", 50)]
)
def test_every_row_of_the_tables_is_there(table, rows):
    printed = TABLES[table]
    assert len(printed) == rows * len(SCHEDULERS)
    assert {(case, at) for case, at, _ in printed} == {
        (case, slo) for case in cases(table) for slo in SLOS
    }
    assert all(0.0 <= finish <= 1.0 for finish in printed.values())


def test_tables_2_and_3_have_65_rows_of_13_cases():
    both = TABLES["table-2"] | TABLES["table-3"]
    assert len({(case, slo) for case, slo, _ in both}) == 65
    assert len({case for case, _, _ in both}) == 13


@pytest.mark.parametrize(
    ("case", "slo", "rates"),
    [
        ("std-0.5", 1.5, (0.01, 0.01, 0.44, 0.57)),
        ("std-2/0.5", 4.0, (0.89, 0.93, 0.59, 0.96)),
        ("std-0.5/2", 5.0, (0.15, 0.17, 0.52, 0.99)),
        ("one-modal", 1.5, (0.03, 0.04, 0.48, 0.46)),
        ("three-modal", 2.0, (0.05, 0.05, 0.55, 0.68)),
        ("eight-modal", 5.0, (0.11, 0.14, 0.50, 0.99)),
        ("inception-imagenet", 2.0, (0.31, 0.30, 0.58, 0.48)),
        ("resnet-imagenet", 5.0, (0.95, 0.96, 0.87, 0.99)),
        ("blenderbot-convAI", 5.0, (0.75, 0.87, 0.65, 0.81)),
        ("gpt-convAI", 3.0, (0.91, 0.99, 0.61, 0.86)),
        ("skipnet-imagenet", 5.0, (0.00, 0.48, 0.16, 0.89)),
    ],
)
def test_values_are_as_printed(case, slo, rates):
    assert tuple(printed_finish(case, slo, name) for name in SCHEDULERS) == rates


def test_nothing_is_made_up_where_nothing_is_printed():
    assert printed_finish("std-0.5", 2.5, "orloj") is None
    assert printed_finish("std-0.5", 2.0, "slack") is None


def test_orloj_is_the_best_in_all_but_one_row_of_tables_2_and_3():
    # The paper prints the best of each row in bold; one row of the 65 has Clockwork's.
    lost = [
        (case, slo)
        for table in ("table-2", "table-3")
        for case in cases(table)
        for slo in SLOS
        if printed_finish(case, slo, "orloj")
        < max(printed_finish(case, slo, name) for name in SCHEDULERS)
    ]
    assert lost == [("one-modal", 1.5)]


def test_table_1_names_the_tasks_of_table_5():
    assert set(TASKS) == set(cases("table-5"))
    assert all(0.0 < task.mean_ms < task.p99_ms for task in TASKS.values())
    assert TASKS["skipnet-imagenet"].p99_ms == 5.56

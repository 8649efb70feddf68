"""The slowest tests, as a table: `make test` writes what it needs (`.cache/tests.xml`).

python bench/slow_tests.py > bench/slow_tests.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
REPORTS = ("tests.xml", "slow-tests.xml")
ROWS = 50


def durations(report: Path) -> Iterator[tuple[float, str]]:
    """Seconds with fixtures, and the test, for each test of a JUnit report."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = case.attrib["classname"].split(".")
        at = next((at for at, part in enumerate(parts, 1) if part.startswith("test_")), None)
        if at is not None:  # else a whole file is skipped
            test = "::".join((f"{'/'.join(parts[:at])}.py", *parts[at:], case.attrib["name"]))
            yield float(case.attrib["time"]), test


def main() -> None:
    reports = [ROOT / ".cache" / name for name in REPORTS]
    missing = [str(report.relative_to(ROOT)) for report in reports if not report.is_file()]
    if missing:
        sys.exit(f"{', '.join(missing)}: no such file; `make test test-slow` writes it")
    slowest = sorted((row for report in reports for row in durations(report)), reverse=True)[:ROWS]
    print(f"# The {ROWS} slowest tests\n")
    print("Seconds with the fixtures that were made for them, two files at a time on two cores.")
    print(
        "`make test test-slow` and `python bench/slow_tests.py > bench/slow_tests.md` write this.\n"
    )
    print("| s | test |\n| --- | --- |")
    for seconds, test in slowest:
        print(f"| {seconds:.1f} | `{test}` |")


if __name__ == "__main__":
    main()

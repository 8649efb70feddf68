"""The page for those who run the server: its table of flags is that of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slacktide.cli.main import load_verb

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def flags() -> list[Any]:
    """The options of `slacktide serve` that set something."""
    options = [p for p in load_verb("serve").params if p.param_type_name == "option"]
    return [option for option in options if option.name != "print_config"]


def row(option: Any) -> str:
    """A flag as the table has it."""
    default = getattr(option.default, "value", option.default)
    shown = "" if default in (None, False) else f"`{default}`"
    cells = (f"`{option.opts[0]}`", shown, option.help)
    return "| " + " | ".join(cells) + " |"


def test_every_flag_is_in_the_table_as_it_is():
    table = PAGE.read_text().partition("| flag | default |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `--")]
    assert rows == [row(option) for option in flags()]


def test_the_environment_variable_of_a_flag_follows_from_its_name():
    assert "`--http-port` is `SLACKTIDE_HTTP_PORT`" in PAGE.read_text()
    for option in flags():
        name = option.opts[0].removeprefix("--").replace("-", "_").upper()
        assert option.envvar == f"SLACKTIDE_{name}"


def test_the_probes_are_yaml_and_ask_for_what_there_is():
    text = PAGE.read_text().split("```yaml\n")[1].split("```")[0]
    probes = yaml.safe_load(text)
    paths = {probe["httpGet"]["path"] for name, probe in probes.items() if name.endswith("Probe")}
    assert paths == {"/v2/health/live", "/v2/health/ready"}


if __name__ == "__main__":  # prints the table, to be pasted into the page
    print("\n".join(map(row, flags())))

"""The gate: one rule for every port."""

from __future__ import annotations

import pytest

from slacktide.server.groups import Group
from slacktide.server.security import Gate, SecurityError, TlsFiles, Verdict, read_token

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize("group", list(Group))
def test_without_a_token_everything_passes(group):
    assert Gate(None).judge(group, None) is Verdict.PASS


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.HEALTH])
@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        (None, Verdict.NO_TOKEN),
        ("", Verdict.NO_TOKEN),
        (TOKEN, Verdict.NO_TOKEN),
        (f"Basic {TOKEN}", Verdict.NO_TOKEN),
        ("Bearer wrong", Verdict.WRONG_TOKEN),
        (f"Bearer {TOKEN}x", Verdict.WRONG_TOKEN),
        (f"Bearer {TOKEN}", Verdict.PASS),
        (f"bearer  {TOKEN} ".encode(), Verdict.PASS),
    ],
)
def test_every_group_but_health_asks_for_the_token(group, header, verdict):
    assert Gate(TOKEN).judge(group, header) is verdict


def test_probes_carry_no_token():
    assert Gate(TOKEN).judge(Group.HEALTH, None) is Verdict.PASS


def test_the_token_is_the_first_line_of_its_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nsecond line\n")
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    "content", ["", "short\n", "with some spaces inside\n", "ünïcödé-tökén-xyz\n"]
)
def test_a_bad_token_file_is_refused_without_telling_the_token(tmp_path, content):
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(SecurityError, match="token-file") as caught:
        read_token(file)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_missing_files_are_named_by_setting(tmp_path):
    with pytest.raises(SecurityError, match="token-file: cannot be read: No such file"):
        read_token(tmp_path / "nowhere")
    with pytest.raises(SecurityError, match="tls-cert"):
        TlsFiles(tmp_path / "c", tmp_path / "k").context()

"""The command line: a thin layer of flags, tables and exit codes over the packages below.

Nothing here decides anything a Python caller could not; each verb is a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.cli.extension_group import ExtensionGroup as ExtensionGroup
    from slacktide.cli.extension_group import make_command as make_command
    from slacktide.cli.output import FELL_SHORT as FELL_SHORT
    from slacktide.cli.output import can_write as can_write
    from slacktide.cli.output import console as console
    from slacktide.cli.output import fail as fail
    from slacktide.cli.output import print_json as print_json
    from slacktide.cli.output import progress as progress
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "extension_group": "ExtensionGroup make_command",
            "output": "FELL_SHORT can_write console fail print_json progress",
        },
    )

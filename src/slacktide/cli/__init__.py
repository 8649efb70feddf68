"""The command line: a thin layer of flags, tables and exit codes. Each verb is a file.

Everything it does can also be done from Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.cli.extension_group import ExtensionGroup as ExtensionGroup
    from slacktide.cli.extension_group import make_command as make_command
    from slacktide.cli.flags import with_flags as with_flags
    from slacktide.cli.output import FELL_SHORT as FELL_SHORT
    from slacktide.cli.output import can_write as can_write
    from slacktide.cli.output import console as console
    from slacktide.cli.output import fail as fail
    from slacktide.cli.output import option as option
    from slacktide.cli.output import plots_missing as plots_missing
    from slacktide.cli.output import print_json as print_json
    from slacktide.cli.output import progress as progress
    from slacktide.cli.output import require_goodput as require_goodput
    from slacktide.cli.output import seconds_of as seconds_of
    from slacktide.cli.output import share_of as share_of
    from slacktide.cli.output import write_page as write_page
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "flags": "with_flags",
            "extension_group": "ExtensionGroup make_command",
            "output": "FELL_SHORT can_write console fail option plots_missing print_json progress "
            "require_goodput seconds_of share_of write_page",
        },
    )

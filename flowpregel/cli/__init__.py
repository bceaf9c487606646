"""The command ``flowpregel``: runs flows, and looks after their stores, from a
terminal.

Imports of click and rich stay in this package; without them, or what the page needs,
`main` says how to get them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRAS = {"click": "cli", "rich": "cli", "starlette": "ui", "uvicorn": "ui"}
"""What has to be installed for a command, and with which extra."""


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
    try:
        from flowpregel.cli.app import app  # noqa: PLC0415 - an extra, perhaps not installed

        app(prog_name="flowpregel")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        sys.stderr.write(
            f"flowpregel: the command needs {missing}, which is not installed; "
            f"get it with: pip install 'flowpregel[{_EXTRAS[missing]}]'\n"
        )
        sys.exit(2)

"""The command ``flowpregel``, which runs flows and maintains their stores.

Only this package imports click and rich. If one of them is not installed, or a package
that the web page needs, `main` prints how to install it.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRAS = {"click": "cli", "rich": "cli", "starlette": "ui", "uvicorn": "ui"}
"""The packages that commands need, each with the extra that installs it."""


def main() -> None:
    """Run the command with the arguments of this process, and exit with the exit code
    that the command returns.
    """
    try:
        from flowpregel.cli.app import app  # noqa: PLC0415 - needs the extra `cli`

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

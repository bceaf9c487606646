"""The command ``python -m flowpregel.langgraph``, which runs a program written for
LangGraph on flowpregel.

The program runs as under ``python``, but flowpregel answers its imports of `langgraph`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Final

from flowpregel.plugins.langgraph import install

__all__ = ["run_hooked_program"]

USAGE: Final = """\
usage: python -m flowpregel.langgraph PROGRAM [ARGUMENTS ...]
       python -m flowpregel.langgraph -m MODULE [ARGUMENTS ...]

Run a program written for LangGraph on flowpregel, without a change. flowpregel answers
all imports of langgraph, except those of LangGraph's checkpointers and serializers.
FLOWPREGEL_EXECUTOR (processes, threads or inline) sets where nodes run."""


def run_hooked_program(arguments: Sequence[str]) -> None:
    """Run the program that *arguments* begin with, as ``__main__`` of this process.

    Args:
        arguments: The arguments of the command line, without the name of this module.

    Raises:
        SystemExit: There is no program among the arguments, or the program has ended
            with this error.
    """
    match arguments:
        case ["-h" | "--help", *_]:
            sys.stdout.write(f"{USAGE}\n")
        case ["-m", module, *rest]:
            install()
            sys.argv[:] = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [program, *rest] if not program.startswith("-"):
            if not os.path.exists(program):
                raise SystemExit(f"there is no program {program}")
            install()
            sys.argv[:] = [program, *rest]
            if not sys.flags.safe_path:
                # With ``python -m``, the first entry of `sys.path` is the working
                # directory. The program expects its own folder there, so the entry is
                # replaced.
                sys.path[0] = os.path.dirname(os.path.realpath(program))
            runpy.run_path(program, run_name="__main__")
        case _:
            raise SystemExit(USAGE)


if __name__ == "__main__":
    run_hooked_program(sys.argv[1:])

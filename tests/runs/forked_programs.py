"""Programs that use LangChain's packages, each in a fork of one process.

``import langgraph`` takes nearly two seconds of CPU, of which most are for
``langchain_core``. The process imports that and flowpregel once, and nothing of
LangGraph itself: each program imports it as in an interpreter of its own.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tests.runs.stores import ROOT

# LangChain's come first: flowpregel waits for an import of them otherwise.
_IMPORTED = (
    "langchain_core.language_models.chat_models",
    "langchain_core.runnables.config",
    "langchain_core.tools.base",
    "flowpregel.func",
    "flowpregel.graph",
    "sqlite3",
    "sqlite_vec",
    "aiosqlite",
    "ormsgpack",
    "xxhash",
)
_LONGEST = 120
"""The seconds after which a program is killed."""


class ProgramServer:
    """The process that forks the programs.

    Args:
        folder: The folder of what the programs print.
    """

    def __init__(self, folder: Path) -> None:
        self._stdout = folder / "stdout"
        self._stderr = folder / "stderr"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.forked_programs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run *code* as ``python -c`` does, and return how it ended."""
        program = {
            "code": code,
            "stdout": str(self._stdout),
            "stderr": str(self._stderr),
            "variables": {**os.environ, "PYTHONPATH": str(ROOT)},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(
            ["-c", code], status, self._stdout.read_text(), self._stderr.read_text()
        )


def _fork_programs() -> dict[str, Any] | None:
    """Fork for each program that is asked for, and return the program in the fork."""
    for line in iter(sys.stdin.readline, ""):
        process_id = os.fork()
        if process_id == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(process_id, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _become(program: dict[str, Any]) -> None:
    """Be the interpreter of a program from now on."""
    signal.alarm(_LONGEST)
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(program["stdout"], written), 1)
    os.dup2(os.open(program["stderr"], written), 2)
    os.environ.clear()
    os.environ.update(program["variables"])
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["-c"]
    exec(program["code"], vars(main))


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    assert not [name for name in sys.modules if name.partition(".")[0] == "langgraph"]
    # At its end a fork would look for garbage in all that memory, and so copy it.
    gc.freeze()
    asked = _fork_programs()
    if asked is not None:
        _become(asked)

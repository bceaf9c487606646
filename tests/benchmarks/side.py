"""The process of one side: ``python -m tests.benchmarks.side MAKER OPTIONS``.

It says ``ready``, and then, for each line that it reads: ``go`` does the work once and
answers with the figures as JSON, ``profile`` does it under cProfile and answers with
where the time went. The end of its input ends it. Whatever the work prints goes to
standard error.
"""

from __future__ import annotations

import cProfile
import gc
import importlib
import json
import os
import pstats
import sys
import time
from typing import Any, TextIO

from tests.benchmarks.model import Maker, Work

ENTRIES = 5
"""How many functions a profile names."""


def maker_of(name: str) -> Maker:
    """Return what ``module:function`` names."""
    module, function = name.split(":")
    found: Maker = getattr(
        importlib.import_module(f"tests.benchmarks.{module}"), function
    )
    return found


def turn(work: Work) -> dict[str, Any]:
    """Do the work once; return its figures, and the seconds it took in all."""
    gc.collect()
    begun = time.perf_counter()
    figures = work()
    wall = time.perf_counter() - begun
    if not isinstance(figures, dict):
        figures = {"seconds": figures}
    return {"wall": wall, **figures}


def profile(work: Work) -> dict[str, Any]:
    """Do the work once under cProfile; return where the time of this OS thread went."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    entries = sorted(stats.items(), key=lambda item: -item[1][2])[:ENTRIES]
    return {
        "seconds": total,
        "entries": [
            {"what": place(*key), "calls": calls, "own": own, "share": own / total}
            for key, (_, calls, own, _, _) in entries
        ],
    }


def place(path: str, line: int, name: str) -> str:
    """Return the name of a function in a profile, without the folders of this
    machine.
    """
    if path in ("~", ""):
        return name.strip("<>")
    parts = path.replace("\\", "/").split("/")
    folders = {"flowpregel", "tests", "site-packages", "lib"}
    start = max((i for i, part in enumerate(parts[:-1]) if part in folders), default=-2)
    start += parts[start] in ("site-packages", "lib") if start >= 0 else 0
    return f"{'/'.join(parts[start:]) if start >= 0 else parts[-1]}:{name}"


def serve(work: Work, answers: TextIO) -> None:
    """Do what the lines of standard input ask for."""
    for line in sys.stdin:
        answer = profile(work) if line.strip() == "profile" else turn(work)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> int:
    """Make the side that the command line names, and serve."""
    name, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with maker_of(name)(**json.loads(options)) as work:
        answers.write('"ready"\n')
        answers.flush()
        serve(work, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

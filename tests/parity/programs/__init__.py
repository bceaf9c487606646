"""Programs that import LangGraph, and packages on top of it, and print what they do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def print_line(outcome: Any) -> None:
    """Print an outcome as a line of JSON, without the ids that differ in each run."""
    print(_RANDOM_ID.sub("(id)", json.dumps(outcome)), flush=True)


def print_outcomes(programs: Sequence[Callable[[], Any]]) -> None:
    """Print the number, the name and the outcome or error of each program, as a line of
    each.
    """
    for number, program in enumerate(programs):
        try:
            outcome = program()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            outcome = {"error": repr(error)}
        print_line([number, program.__name__, outcome])

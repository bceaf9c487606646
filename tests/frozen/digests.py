"""Digests and ids as they are computed now, and where the recorded ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flowpregel._code.digest import code_digest
from flowpregel._core import ids
from flowpregel._pickling.digest import digest_of
from tests.frozen.functions import FUNCTIONS
from tests.frozen.values import expressions, value_of

_HERE: Final = Path(__file__).parent
DIGESTS: Final = _HERE / "digests.json"
STORE: Final = _HERE / "store.tar.xz"


def digests() -> dict[str, str]:
    """Return the digest of every value and function, and some ids, by what they are
    of.
    """
    result = {
        f"value {expression}": digest_of(value_of(expression), "it", strict=False)
        for expression in expressions()
    }
    for name, function in FUNCTIONS.items():
        result[f"code {name}"] = code_digest(function).digest
    path = ids.call_path("~__pregel_pull, flow", 3)
    result |= {
        "text": ids.text_digest("a", 1),
        "task id": ids.task_id("thread", 3, "node"),
        "call path": path,
        "interrupt id": ids.interrupt_id("flow:3|g:4", 2),
        "checkpoint id": ids.checkpoint_id(1_800_000_000_123_456_789, 3),
    }
    return result

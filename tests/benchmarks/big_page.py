"""What the page costs for a run of a million calls.

``python -m tests.benchmarks.big_page [CALLS]`` makes up a store with such a run, serves
it twice, prints what that takes, and fails if it takes too much. The seconds are of
CPU, of the server and of the client together. They are printed as measured, while the
limits are generous, so that a busy machine does not exceed them.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.benchmarks.work import folder
from tests.page.big import THREAD, big_store
from tests.page.serving import FIRST_VISIT, Served, receive, served

_MOST_BYTES = 200_000
"""The limit on the bytes of a first visit."""
_MOST_SECONDS_A_CALL = 100e-6
"""The limit on the time to read a call for the first time."""
_MOST_RESTORED_A_CALL = 2e-6
"""The limit on the time to begin with a call that an earlier server has read."""
_LONGEST_ANSWER = 3.0
"""The limit on the seconds of any answer while a run is read for the first time."""


class Costs(NamedTuple):
    """The costs of the page of a run."""

    first_answer: float
    """Seconds until a new server has answered for the first time."""
    longest_answer: float
    """The seconds of the longest answer until all calls were read."""
    reading: float
    """Seconds until all calls were read."""
    visit_bytes: int
    """The bytes that a first visit takes, compressed."""
    restored: float
    """Seconds of the first visit to the next server."""
    visit: float
    """Seconds of a second visit."""

    def check(self, calls: int) -> None:
        """Raise an error if a cost is above its limit."""
        assert self.visit_bytes <= _MOST_BYTES, self
        assert self.longest_answer <= _LONGEST_ANSWER, self
        assert self.reading <= 5 + calls * _MOST_SECONDS_A_CALL, self
        assert self.restored <= 1 + calls * _MOST_RESTORED_A_CALL, self
        assert self.visit <= 1, self


def measure(path: Path, calls: int) -> Costs:
    """Return what the page of a run with so many calls costs.

    Args:
        path: An empty folder, which also gets the cache files.
        calls: The number of calls.
    """
    os.environ["XDG_CACHE_HOME"] = str(path / "cache")
    store = big_store(path / "store", calls)
    answers: list[float] = []
    with served(store) as server:
        first_answer = _seconds(lambda: _ask(server, "runs"))
        is_behind = True
        while is_behind:
            begin = time.process_time()
            is_behind = _ask(server, "calls", thread=THREAD)["is_behind"]
            answers.append(time.process_time() - begin)
        sent = sum(receive(server, file).size for file in FIRST_VISIT)
        sent += sum(_visit(server))
    with served(store) as server:
        restored = _seconds(lambda: _visit(server))
        visit = _seconds(lambda: _visit(server))
        total = _ask(server, "calls", thread=THREAD)["total"]
    assert calls < total, total
    return Costs(
        first_answer=first_answer,
        longest_answer=max(answers),
        reading=sum(answers),
        visit_bytes=sent,
        restored=restored,
        visit=visit,
    )


def _visit(server: Served) -> list[int]:
    """Ask what the page asks when a run is opened, and return the bytes of each
    answer.
    """
    paths = [
        "runs",
        *(f"{name}?thread={THREAD}" for name in ("run", "calls", "errors")),
    ]
    return [receive(server, f"/api/{path}").size for path in paths]


def _ask(server: Served, path: str, **query: str) -> Any:
    body = receive(server, f"/api/{path}?{urlencode(query)}").body
    is_compressed = body.startswith(b"\x1f\x8b")
    return json.loads(gzip.decompress(body) if is_compressed else body)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    """Measure, print and check the costs."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with folder() as path:
        costs = measure(Path(path), calls)
    for name, cost in costs._asdict().items():
        unit = "" if name == "visit_bytes" else " s"
        print(f"{name:16} {cost:12,.3f}{unit}")
    costs.check(calls)


if __name__ == "__main__":
    main()

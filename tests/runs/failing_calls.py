"""Workflows whose calls fail, found by the name of this module: see
`test_failed_calls`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from flowpregel.func import entrypoint, task
from flowpregel.types import StreamWriter

FLOWS = "tests.runs.failing_calls"


@task
def halve(n: int) -> float:
    return n / 2


@task
def parse(folder: str, name: str) -> str:
    """Read a file, and halve its length in a task of its own."""
    text = Path(folder, name).read_text()
    return f"{text} {halve(len(text)).result()}"


@entrypoint(executor="threads")
def study(folder: str) -> list[str]:
    """Parse three files; the last is not there until a test writes it."""
    futures = [parse(folder, name) for name in ("a.txt", "b.txt", "c.txt")]
    return [future.result() for future in futures]


@task
def summed(texts: list[str]) -> int:
    return sum(map(len, texts))


@entrypoint(executor="threads")
def lenient(folder: str) -> int:
    """Count the characters of the files that are there."""
    found = []
    for name in ("a.txt", "b.txt", "c.txt"):
        try:
            found.append(parse(folder, name).result())
        except FileNotFoundError:
            found.append("")
    return summed(found).result()


@task(redact="password")
def login(user: str, password: str, *, table: Any = None) -> str:
    raise PermissionError(user)


@entrypoint(executor="threads")
def session(table: Any) -> str:
    return login("ann", "secret", table=table).result()


@task
def die(name: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@entrypoint(executor="processes")
def deadly(name: str) -> str:
    return die(name).result()


@task
def invert(n: int, writer: StreamWriter) -> float:
    writer(n)
    return 1 / n


@task
def counted_words(words: list[str], path: str) -> int:
    """Add a word in place, and count the characters of a file."""
    words.append("c")
    return len(Path(path).read_text())


@entrypoint(executor="threads", check_mutations=False)
def counting(words: list[str], path: str) -> int:
    return counted_words(words, path).result()


@entrypoint(executor="threads")
def chunks(numbers: list[int]) -> list[float]:
    return [future.result() for future in invert.map(numbers, chunksize=2)]

"""Where figures are from: the code that they measured, the machine, and its load.

An origin has the commit that last changed the package, a digest of the package's code,
and the machine with the versions of the peers. The digest is what counts. It needs no
git, is the same on every Python, and leaves out comments and docstrings: a figure is
older than the code if the code does something else now, not if it is explained better.

The documents are written at some commit, and stay true afterwards: they mark the
figures that were older than the code *when they were written*, and name that commit
(`Written`). So a change of code breaks no test, and a page never claims more than was
checked. ``python -m tests.benchmarks --stale`` compares the figures with the code of
now, ``--docs --no-run`` renews the marks, and a release is refused unless they are
those of the code that it ships (``tests/package``).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = "flowpregel"
KINDS = ("rows", "growth", "profiles")
"""The parts of the results whose entries each have an origin."""
QUIET = 0.25
"""How many cores other programs may keep busy while a row is measured."""
SAMPLE = 0.5
"""Seconds for which the load of the machine is sampled."""

Origin = Mapping[str, Any]
"""The commit, the digest of the code as ``package``, and the machine of a figure."""

Written = Mapping[str, Any]
"""The commit and the digest of the code at which the documents were last written, and
how many files had ``changed`` by then since each commit of an origin.
"""


def package_digest(root: Path = ROOT) -> str:
    """Return the digest of the code of the package below *root*."""
    lines = [f"{name} {digest}\n" for name, digest in code_of_tree(root).items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def code_of_tree(root: Path = ROOT) -> dict[str, str]:
    """Return the digest of the code of each module of the package below *root*."""
    return {
        file.relative_to(root).as_posix(): code_digest(file.read_text("utf-8"))
        for file in sorted((root / PACKAGE).rglob("*.py"))
    }


def code_of_commit(commit: str) -> dict[str, str]:
    """Return the same for a commit; nothing if git does not know it."""
    archive = git("archive", commit, "--", PACKAGE)
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name: code_digest(files.extractfile(member).read().decode())
            for member in files
            if member.name.endswith(".py")
        }


@cache
def code_digest(text: str) -> str:
    """Return the digest of a module's lines without comments, docstrings and blank
    lines.
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and is_docstring(node, lines):
            blanks = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            lines[node.lineno - 1 : node.end_lineno] = blanks
    code = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(code.encode()).hexdigest()


def is_docstring(statement: ast.Expr, lines: Sequence[str]) -> bool:
    """Return whether a statement is nothing but a string, on lines of its own."""
    before = lines[statement.lineno - 1][: statement.col_offset]
    value = statement.value
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return is_text and not before.strip()


def git(*arguments: str) -> bytes:
    """Return what git prints, or nothing where there is no git or no such commit."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout
    return b""


def last_commit() -> str:
    """Return the commit that last changed the package; empty if git does not know.

    A commit that changes other files has the same package, and may yet be rebased.
    """
    commit = git("log", "-1", "--format=%h", "--abbrev=10", "--", PACKAGE)
    return commit.decode().strip()


def uncommitted() -> list[str]:
    """Return the files of the package that differ from those of the last commit."""
    status = git("status", "--porcelain", "--untracked-files=all", "--", PACKAGE)
    return [line[3:] for line in status.decode().splitlines()]


@cache
def changed_files(commit: str) -> int | None:
    """Return how many modules are new or have other code since *commit*; None if git
    does not know that commit.
    """
    before = code_of_commit(commit)
    if not before:
        return None
    return sum(before.get(name) != digest for name, digest in code_of_tree().items())


def origin(machine: Mapping[str, Any]) -> Origin:
    """Return the origin of figures that are measured now."""
    return {"commit": last_commit(), "package": package_digest(), "machine": machine}


def name_of(origin: Origin) -> str:
    """Return the name under which the results keep an origin."""
    text = json.dumps(origin, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def written(origins: Iterable[Origin]) -> Written:
    """Return the commit at which the documents are written now."""
    commits = sorted({origin["commit"] for origin in origins})
    return {
        "commit": last_commit(),
        "package": package_digest(),
        "changed": {commit: changed_files(commit) for commit in commits},
    }


def is_equal(one: Origin, other: Origin) -> bool:
    """Return whether two origins have the same code and the same machine.

    Their commits may differ: one of them may have changed comments alone.
    """
    keys = ("package", "machine")
    return all(one[key] == other[key] for key in keys)


def stale(results: Mapping[str, Any], package: str) -> dict[str, list[str]]:
    """Return the entries of each kind that were measured on other code than
    *package*.
    """
    return {
        kind: [
            name
            for name, entry in results[kind].items()
            if origin_of(entry, results)["package"] != package
        ]
        for kind in KINDS
    }


def origin_of(entry: Mapping[str, Any], results: Mapping[str, Any]) -> Origin:
    """Return the origin of a row, a curve or a profile."""
    found: Origin = results["origins"][entry["origin"]]
    return found


def is_older(entry: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
    """Return whether an entry is of other code than the documents were written at."""
    package: str = results["written"]["package"]
    return package != origin_of(entry, results)["package"]


def is_busy(entry: Mapping[str, Any]) -> bool:
    """Return whether other programs used the machine while an entry was measured.

    Where that was not sampled, it is not known, and the entry counts as quiet.
    """
    return (entry.get("load") or 0) > QUIET


def sampled_load(seconds: float = SAMPLE) -> float | None:
    """Return how many cores are busy for a moment; None where ``/proc`` is absent.

    It is called while no side of a workload runs: what it counts are other programs.
    """
    before = _busy_ticks()
    if before is None:
        return None
    begun = time.monotonic()
    time.sleep(seconds)
    after = _busy_ticks()
    assert after is not None
    return (after - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begun)


def _busy_ticks() -> int | None:
    try:
        line = Path("/proc/stat").read_text("ascii").split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return user + nice + system + irq + softirq


def greater_load(*loads: float | None) -> float | None:
    """Return the greatest of several loads, rounded; None if one is not known."""
    known = [load for load in loads if load is not None]
    return round(max(known), 2) if len(known) == len(loads) else None

"""Runs the examples of a folder of documentation on LangGraph and here, and prints how
many agree.

Run ``python -m tests.parity.documentation FOLDER`` on a folder with pages of
LangGraph's documentation (``.md``, ``.ipynb``; of ``.py`` files the examples in
docstrings). ``-v`` shows what differs. Nothing of such pages is kept in this
repository.

The blocks of a page run one after the other in one namespace, in a process of their own
for each engine. Models are replaced by one that asks for each of its tools once and
then answers. A block that fails on LangGraph, because it needs a network or a package,
says nothing and is not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FENCE = re.compile(
    r"^([ \t]*)```(?:python|py)\b[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE
)
MODELS = ("langchain_anthropic:ChatAnthropic", "langchain_openai:ChatOpenAI")
SECONDS = 900
"""How long a page may take on one engine."""


def blocks_of(page: Path) -> list[str]:
    """Return the Python examples of a page, in order."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = (
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
        )
        return [
            source
            for source in sources
            if not re.search(r"^\s*[%!]", source, re.MULTILINE)
        ]
    return [textwrap.dedent(found[2]) for found in FENCE.finditer(text)]


def pages_of(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each page of *folder* that has examples: its name, and the examples.

    A module counts as one page for each docstring: its examples know nothing of the
    others'.
    """
    for page in sorted(folder.rglob("*")):
        name = page.relative_to(folder).as_posix()
        if page.suffix == ".py":
            for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node) or ""
                    if blocks := [
                        textwrap.dedent(found[2]) for found in FENCE.finditer(text)
                    ]:
                        yield f"{name}:{getattr(node, 'name', 'module')}", blocks
        elif page.suffix in (".md", ".ipynb") and (blocks := blocks_of(page)):
            yield name, blocks


def swapped(block: str) -> str:
    """Return *block* with its imports changed, as the guide *Move from LangGraph*
    says.
    """
    block = re.sub(
        r"\blanggraph\.prebuilt(\.\w+)?\b", "flowpregel.plugins.langchain", block
    )
    return re.sub(r"\blanggraph\b(?=[.\s])", "flowpregel", block)


# one page on one engine ----------------------------------------------------


def fake_models() -> None:
    """Let imports of models give a scripted one."""
    from tests.parity.toolbox_model import ToolboxModel

    def model(*_: Any, **__: Any) -> ToolboxModel:
        return ToolboxModel()

    for entry in (*MODELS, "langchain.chat_models:init_chat_model"):
        module, _, name = entry.partition(":")
        if "." in module:
            sys.modules[module.partition(".")[0]] = types.ModuleType(
                module.partition(".")[0]
            )
        sys.modules[module] = types.ModuleType(module)
        setattr(sys.modules[module], name, model)


def run_page(engine: str, blocks: list[str]) -> list[list[str]]:
    """Return for each block what it printed, and the class of the error it raised, or
    ''.
    """
    warnings.simplefilter("ignore")
    fake_models()
    if engine == "flowpregel":
        import flowpregel.graph
        import flowpregel.graph.message
        from flowpregel.plugins import langchain

        for module in (flowpregel.graph, flowpregel.graph.message):
            for name in ("MessagesState", "add_messages"):
                setattr(module, name, getattr(langchain, name))
    page: dict[str, Any] = {"__name__": "__main__", "show": show}
    results = []
    for block in blocks:
        printed, error = io.StringIO(), ""
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            try:
                source = swapped(block) if engine == "flowpregel" else block
                run_block(source, page)
            except BaseException as raised:  # noqa: BLE001 - it is compared
                error = f"{type(raised).__name__}: {raised}"[:300]
        results.append([printed.getvalue(), error])
    return results


def show(value: Any) -> None:
    """Print what a block ends with, as a notebook does, unless it is part of an
    engine.
    """
    if isinstance(value, dict | list | tuple | str | int | float):
        print(repr(value))


def run_block(source: str, page: dict[str, Any]) -> None:
    """Run a block as a notebook would: ``await`` may stand outside of functions."""
    import asyncio

    tree = ast.parse(source)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Expr(
            ast.Call(ast.Name("show", ast.Load()), [last.value], [])
        )
    tree = ast.fix_missing_locations(tree)
    code = compile(tree, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, page)
    if result is not None:
        asyncio.run(result)


# ---------------------------------------------------------------- both engines


def results_of(engine: str, blocks: list[str]) -> list[list[str]]:
    """Return what `run_page` returns, of a process of its own."""
    command = [sys.executable, "-m", "tests.parity.documentation", "--page", engine]
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "results.json")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, str(target)],
                input=json.dumps(blocks),
                text=True,
                cwd=folder,
                timeout=SECONDS,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                env={**os.environ, "PYTHONPATH": root},
            )
        if not target.exists():
            return [["", "the page did not end"]] * len(blocks)
        found: list[list[str]] = json.loads(target.read_text("utf-8"))
        return found


def plain(text: str) -> str:
    """Return *text* without what differs from run to run: ids, times, addresses,
    names.
    """
    text = re.sub(
        r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", "ID", text
    )
    text = re.sub(r"\b(lc_)?[0-9a-f]{32}\b|lc_run--\S+?(?=['\"])", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME", text)
    return re.sub(r"0x[0-9a-f]+", "ADDRESS", text).replace("langgraph", "flowpregel")


def compare(
    name: str, blocks: list[str]
) -> tuple[str, list[tuple[int, list[str], list[str]]], int]:
    """Return the page's name, the blocks that differ with both results, and how many
    count.
    """
    theirs, ours = (
        results_of(engine, blocks) for engine in ("langgraph", "flowpregel")
    )
    counted = [index for index, (_, error) in enumerate(theirs) if not error]
    differing = [
        (index, theirs[index], ours[index])
        for index in counted
        if ours[index][1] or plain(theirs[index][0]) != plain(ours[index][0])
    ]
    return name, differing, len(counted)


def main() -> None:
    """Print the share of blocks that do the same, and what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.documentation")
    parser.add_argument("folder", type=Path, help="where the pages are")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show what differs"
    )
    parser.add_argument("--page", metavar="ENGINE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.page:
        results = run_page(asked.page, json.load(sys.stdin))
        asked.folder.write_text(json.dumps(results), encoding="utf-8")
        return
    totals: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as pool:
        for name, differing, counted in pool.map(
            lambda page: compare(*page), pages_of(asked.folder)
        ):
            totals += Counter(pages=1, blocks=counted, differing=len(differing))
            print(f"{counted - len(differing):4} of {counted:3}  {name}")
            for index, theirs, ours in differing if asked.verbose else ():
                print(f"      block {index}: LangGraph {plain(theirs[0])[-300:]!r}")
                print(f"               here      {plain(ours[0])[-300:]!r} {ours[1]}")
    same = totals["blocks"] - totals["differing"]
    share = same / max(1, totals["blocks"])
    print(
        f"{same} of {totals['blocks']} blocks on {totals['pages']} pages do the same: "
        f"{share:.0%}"
    )


if __name__ == "__main__":
    main()

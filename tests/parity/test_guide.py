"""The blocks of the pages for programs of LangGraph run on LangGraph, too.

A block that cannot is marked in its page: ``<!-- only on flowpregel: reason -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
MARK = r"<!-- only on flowpregel: ([^\n]+) -->"
BLOCK = re.compile(rf"(?:^{MARK}\n)?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FROM_PLUGIN = re.compile(r"from flowpregel\.plugins\.langchain import (.+)")
HOMES = {"create_agent": "langchain.agents", "MessagesState": "langgraph.graph"}
"""The modules of names in `flowpregel.plugins.langchain`, where they are not in
``langgraph.prebuilt``.
"""


@dataclass(frozen=True)
class GuidePage:
    """A page for programs of LangGraph, with the numbers of its blocks.

    Args:
        name: The name of the page.
        package: The package that the page needs, besides LangGraph.
        shared: The number of blocks that run on both libraries.
        own: The number of blocks that run on flowpregel only.
    """

    name: str
    package: str
    shared: int
    own: int

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Each block of the page, after the reason why it is marked, or ``""``."""
        text = (PAGES / f"{self.name}.md").read_text("utf-8")
        return BLOCK.findall(text)


GUIDE = [
    GuidePage("move-from-langgraph", "langgraph", shared=8, own=4),
    GuidePage("use-langchain", "langchain", shared=7, own=1),
]


def on_langgraph(program: str) -> str:
    """Return a *program* with LangGraph's imports, and without ``executor=``."""
    program = FROM_PLUGIN.sub(_imports_of_names, program)
    program = re.sub(r'(, )?\bexecutor="\w+"', "", program)
    return program.replace("flowpregel", "langgraph")


def _imports_of_names(line: re.Match[str]) -> str:
    """Return a line for each name that *line* imports, with its own module."""
    return "\n".join(
        f"from {HOMES.get(name, 'langgraph.prebuilt')} import {name}"
        for name in line[1].split(", ")
    )


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_few_blocks_run_on_flowpregel_only(page: GuidePage) -> None:
    """Each of them for a reason that stands in the page."""
    reasons = [reason for reason, _ in page.blocks if reason]
    shared = [block for reason, block in page.blocks if not reason]

    assert (page.shared, page.own) == (len(shared), len(reasons))
    assert all(10 < len(reason) for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["langgraph", "flowpregel"])
@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_the_other_blocks_run_on_both_libraries(
    page: GuidePage, library: str, tmp_path: Path
) -> None:
    """Only the imports and the executor differ."""
    pytest.importorskip(page.package, reason=f"{page.package} is not installed")
    program = "\n".join(block for reason, block in page.blocks if not reason)
    if library == "langgraph":
        program = on_langgraph(program)

    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert f"from {library}.graph import" in program
    assert "" == result.stderr
    assert 0 == result.returncode

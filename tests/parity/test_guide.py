"""The blocks of the guide for programs of LangGraph run on LangGraph, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "move-from-langgraph.md"
BLOCK = re.compile(r"<!-- also on LangGraph -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["langgraph", "flowpregel"])
def test_the_blocks_that_run_on_both_libraries_do(library: str, tmp_path: Path) -> None:
    """Only the imports and the executor differ."""
    blocks = BLOCK.findall(GUIDE.read_text("utf-8"))
    program = "\n".join(blocks)
    if library == "langgraph":
        program = program.replace("flowpregel", "langgraph")
        program = program.replace(', executor="inline"', "")

    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert 5 <= len(blocks)
    assert f"from {library}.graph import" in program
    assert "" == result.stderr
    assert 0 == result.returncode

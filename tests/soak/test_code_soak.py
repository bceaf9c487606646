"""The soak of code, short."""

from __future__ import annotations

import pytest

from tests.soak.code import soak_code


@pytest.mark.slow
def test_runs_with_code_of_their_own_take_no_more_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints ten lines of figures."""
    assert soak_code(40, 1 << 16)

    assert 10 == len(capsys.readouterr().out.splitlines())

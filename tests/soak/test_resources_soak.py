"""A short form of ``python -m tests.soak.resources``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.resources import soak_resources, taking


@pytest.mark.slow
def test_nothing_is_exceeded_and_nothing_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is called, killed and cancelled."""
    assert soak_resources(tmp_path, seconds=0, seed=1), capsys.readouterr().out


def test_what_is_exceeded_is_seen(tmp_path: Path) -> None:
    """So that the soak can fail."""
    with (
        taking("memory", str(tmp_path)),
        taking("memory", str(tmp_path)),
        pytest.raises(AssertionError, match="memory is exceeded by 1"),
        taking("memory", str(tmp_path)),
    ):
        pass

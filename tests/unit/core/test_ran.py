"""How a task ran: what is kept of it reads back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core.ran import EXECUTORS, Ran, line_of

RANS = st.builds(
    Ran,
    name=st.text(min_size=1, max_size=60),
    began=st.integers(0, 2**62),
    seconds=st.floats(0, 1e6, width=32),
    attempts=st.integers(0, 65_535),
    executor=st.sampled_from(EXECUTORS),
    pid=st.integers(0, 2**22),
    error=st.text(max_size=100),
)


@given(RANS)
def test_what_is_kept_of_a_sent_task_reads_back_as_it_was(ran: Ran) -> None:
    path = "~__pregel_push, 0000000001"

    assert ran == Ran.from_bytes(ran.to_bytes(path), path)


@given(RANS)
def test_a_triggered_task_takes_its_name_from_its_path(ran: Ran) -> None:
    path = f"~__pregel_pull, {ran.name}"
    kept = ran.to_bytes(path)

    assert ran == Ran.from_bytes(kept, path)
    assert len(kept) == 19 + (1 + len(ran.error.encode()) if ran.error else 0)


def test_an_executor_of_a_users_own_is_kept_as_unknown() -> None:
    ran = Ran("n", 1, 2.0, 3, "a cluster", 4)

    assert ran._replace(executor="") == Ran.from_bytes(ran.to_bytes(""), "")


class Mute(Exception):
    """An error that does not tell."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("why"), "ValueError: why"),
        (ValueError("why\nand more"), "ValueError: why"),
        (ValueError(), "ValueError"),
        (Mute(), "Mute: (its text cannot be had: RuntimeError)"),
        (ValueError("x" * 500), f"ValueError: {'x' * 188}"),
    ],
)
def test_an_error_is_one_line_of_bounded_length(error: Exception, line: str) -> None:
    assert line == line_of(error)

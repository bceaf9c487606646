"""Memory cgroups for tests, which worker processes can join."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.pooling import wait_until


@contextlib.contextmanager
def memory_cgroup(size: int) -> Iterator[Path]:
    """Make a memory cgroup of *size* bytes, or skip the test if that is not allowed."""
    version_1 = Path("/sys/fs/cgroup/memory")
    folder = version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")
    own = folder / f"flowpregel-test-{os.getpid()}"
    try:
        own.mkdir()
        if folder is version_1:
            (own / "memory.limit_in_bytes").write_text(str(size))
            with contextlib.suppress(OSError):
                (own / "memory.memsw.limit_in_bytes").write_text(str(size))
        else:
            (own / "memory.max").write_text(str(size))
            with contextlib.suppress(OSError):
                (own / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            own.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield own

    def is_gone() -> bool:
        # The kernel lets a cgroup go when the last of its processes is reaped.
        with contextlib.suppress(OSError):
            own.rmdir()
        return not own.exists()

    wait_until(is_gone)

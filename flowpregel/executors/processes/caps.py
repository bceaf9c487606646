"""How many threads numeric libraries may use in a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TBB_NUM_THREADS",
)


def thread_caps(cpus: int, workers: int) -> Mapping[str, str]:
    """Return environment variables that give each worker its share of the CPUs.

    Libraries read them when they are imported, so they are set before a worker
    starts. What the user has set stays.
    """
    share = str(max(1, cpus // workers))
    return {name: share for name in _VARIABLES if name not in os.environ}

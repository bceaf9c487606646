"""The named limits of an executor on a cluster. The coordinator enforces them for all
machines together.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes.coordinator.executor import check_limits_scope
from flowpregel.executors.processes.coordinator.resources import (
    OF_THE_MACHINE,
    amounts_in,
)
from flowpregel.executors.resources import LimitsScope, SharedLimits


def limits_of_cluster(
    limits: Mapping[str, float] | None,
    scope: LimitsScope = "pool",
) -> SharedLimits:
    """Return the named limits of an executor on a cluster.

    Args:
        limits: The number of calls that may run at once on all machines together, by
            the name of the limit.
        scope: The calls that share the limits: ``"pool"`` for those of the executor, or
            ``"store"`` for those of all programs whose runs are in the same store, LMDB
            or SQLite.

    Raises:
        ConfigurationError: An argument makes no sense.

    Example:
        >>> from flowpregel.executors.cluster import limits_of_cluster
        >>> limits_of_cluster({"api": 4}).limits
        {'api': 4}
    """
    check_limits_scope(scope, None)
    amounts = amounts_in(limits)
    for name in OF_THE_MACHINE:
        if name in amounts:
            raise ConfigurationError(
                f"limits[{name!r}] is given, but each machine of a cluster reports its "
                f"own {name}: use other names, for limits of all machines together"
            )
    return SharedLimits(amounts, scope=scope)

"""Executors on the machines of a cluster, for authors of a plug-in for an engine.

The tasks run in flowpregel's own pool of worker processes on each machine. An engine,
such as Dask or Ray, moves bytes between the coordinator and these pools. It also
decides how many slots the coordinator has on which machine: a slot is the permission to
run one task there. To use an engine, derive a class from `RemotePool`, and write the
methods of `ClusterEngine`, six of which have no default. Pass an instance to
`ClusterExecutor`. On a machine, the engine's tasks call the methods of the object that
`pool_host` returns.

Read the modules in this order: `remote_pool`, `remote_hosts`, `placement`, `slots` and
`allocations`, which run in the coordinator, then `machine` and `coordinator_client`,
which run on each machine.
"""

from flowpregel.executors.cluster.cluster_executor import ClusterExecutor
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.limits import limits_of_cluster
from flowpregel.executors.cluster.machine import RemotePoolHost, pool_host
from flowpregel.executors.cluster.remote_pool import RemotePool

__all__ = [
    "ClusterEngine",
    "ClusterExecutor",
    "RemotePool",
    "RemotePoolHost",
    "limits_of_cluster",
    "pool_host",
]

"""Executors on the machines of a cluster, for authors of a plug-in for an engine.

The tasks run in flowpregel's own pool of worker processes on each machine. An engine,
such as Dask or Ray, only moves bytes between the coordinator and these pools. An author
derives from `RemotePool`, which has four methods that use the engine, and passes the
pool to `ClusterExecutor`. On a machine, the engine's task calls the methods of
`pool_host`.

The order to read the modules in: `remote_pool`, `remote_hosts`, which are the
coordinator's side; then `machine` and `coordinator_client`, the machine's side.
"""

from flowpregel.executors.cluster.machine import RemotePoolHost, pool_host
from flowpregel.executors.cluster.remote_pool import ClusterExecutor, RemotePool

__all__ = ["ClusterExecutor", "RemotePool", "RemotePoolHost", "pool_host"]

"""Tasks in worker processes.

::

    any OS thread             I/O thread                     worker process (loky)
                                                         |
    run -start(jobs)> executor -> pool -assign-> worker -+-> link reader -> perform(job)
                                   |             process |               |
                                timers           | link  |  emit, call,  |
                                   |             | status|  log, print   |
    mailbox <-post(event)- task_pool <-----------+-------+- link writer <+

* `executor`: the public face of a pool, for any OS thread. `io_loop`: the OS thread
  that does all else, and what waits at the other end of a link.
* `task_pool`: what any pool does with its tasks, and what the frames from workers mean.
  `pool`: that of this machine, with its workers. `assign`: what it decides.
  `worker_process`: one worker, and its link. `crash_report`: how it ended.
* `protocol`: what both ends share. `serialization`: frames, and pickles. `messages`,
  `shared_memory`: what is in a frame, or beside it.
* In the worker: `worker` is its loop, and what its tasks can reach; `worker_io` is its
  process, and what they print and log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.executors.processes.executor import ProcessExecutor, default_pool

__all__ = ["ProcessExecutor", "default_pool"]


def __getattr__(name: str) -> Any:
    # A worker imports this package for its loop alone, and should not wait for the
    # rest.
    if name in __all__:
        from flowpregel.executors.processes import executor  # noqa: PLC0415

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

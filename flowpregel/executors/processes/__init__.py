"""Tasks in worker processes, and the pools that own them.

::

    any OS thread             I/O thread                     worker process (loky)
                                                         |
    run -start(jobs)> executor -> pool -assign-> worker -+-> link reader -> perform(job)
                                   |             process |               |
                                timers           | link  |  emit, call,  |
                                   |             | status|  log, print   |
    mailbox <-post(event)- task_pool <-----------+-------+- link writer <+

* `coordinator`: the pool. `executor` is the pool's public interface, for any OS thread.
  `io_loop` is the OS thread that does everything else. `task_pool` accepts tasks and
  acts on the messages (frames) of workers; `pool` has the workers of this machine;
  `assign` decides which worker gets which task; `worker_process` is one worker.
* `worker`: the worker process, with its end of the link (the connection to the
  coordinator). `task_loop` runs one task after another; `link` sends and receives;
  `output` sends the text that tasks print and log.
* `wire`: everything that crosses the link. `protocol` defines the frames; `messages`
  packs jobs, calls and outcomes; `serialization` and `shared_memory` turn values into
  bytes.

The two ends import `wire`, and never each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.executors.processes.coordinator.executor import (
        ProcessExecutor,
        default_pool,
    )

__all__ = ["ProcessExecutor", "default_pool"]


def __getattr__(name: str) -> Any:
    # The executor is imported on first use, because a worker process imports this
    # package too, but needs only the task loop.
    if name in __all__:
        from flowpregel.executors.processes.coordinator import executor  # noqa: PLC0415

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Tasks in worker processes.

::

    coordinator                                          | worker process (loky)
                                                         |
    run --start(job)--> executor --> pool --> slot ------+--> inbox --> worker --> perform(job)
                                      |        |  link   |                            |
     ^                             stopping    |  board  |   (what runs, what to stop)|
     |                                         |  door   |   (shared memory)          |
     +--post(event)-- mailbox <-- reception <--+---------+-- outlet <-- emit, call, log, end
                                      ^
                                     hub: the OS thread that waits for the run reads the links

* `executor` the public face. `pool`: which task goes to which worker, how many there are.
  `books`: what it has to do, and whom it has to tell. `slot`: one worker and its tasks.
  `spawner`: the OS thread that starts workers.
* `hub`: who reads. `reception`: what arrives and what it means. `stopping`: timeouts,
  cancellation. `deadlines`: what is due when. `death`: post-mortems.
* `frames`: the bytes on a link. `link`, `wire`: its two ends. `patience`: how they wait.
  `serialization`: pickling, and what could not be pickled. `shared_memory`: large buffers.
  `messages`: nodes, jobs and outcomes. `sent_ahead`: what a run's tasks know about it.
  `brief`: small ones that are alike, together.
  `board`: shared flags.
* in the worker: `birth` makes the process one, `worker` is its loop, `ends` what a task can
  reach, `likes` tasks that came together, `setup` what it is started with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.executors.processes.default import default_pool
    from flowpregel.executors.processes.executor import ProcessExecutor

__all__ = ["ProcessExecutor", "default_pool"]


def __getattr__(name: str) -> Any:
    # A worker imports this package for its loop alone, and should not wait for the rest.
    if name == "ProcessExecutor":
        from flowpregel.executors.processes import executor  # noqa: PLC0415

        return executor.ProcessExecutor
    if name == "default_pool":
        from flowpregel.executors.processes import default  # noqa: PLC0415

        return default.default_pool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""A first flow: durable tasks in worker processes. Run it; stop it with kill -9; run it
again.

python examples/first_flow.py
"""

import time

from flowpregel.func import entrypoint, task


# Its calls are recorded; they run in worker processes, as many at once as there are
# cores.
@task
def simulate(seed: int) -> float:
    time.sleep(0.5)  # stands for half a second of hard work
    print(f"  simulated {seed}", flush=True)
    return (seed * 2_654_435_761 % 1_024) / 1_024


@entrypoint(checkpointer="first-flow.lmdb")  # the folder in which the run is kept
def study(seeds: list[int]) -> float:
    futures = [simulate(seed) for seed in seeds]  # all of them start
    return sum(future.result() for future in futures) / len(futures)


if __name__ == "__main__":
    # Let this have been run once: start the run "study-1", go on with it if it was
    # stopped, or return what it came to. The body of `study` runs again from its first
    # line, but a call that has a recorded result returns that result and simulates
    # nothing.
    mean = study.run(list(range(12)), id="study-1")
    print(f"the mean is {mean:.3f}")

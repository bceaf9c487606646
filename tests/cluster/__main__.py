"""``python -m tests.cluster``: Dask and Ray on three network namespaces, and what can
die there.

Needs root, iproute2 and the extras dask and ray; an engine that is not installed is
left out, and that is printed. First the contract of an executor, then the table of
deaths. The exit status is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.dask_engine import DaskCluster
from tests.cluster.deaths import DEATHS
from tests.cluster.network import machines
from tests.cluster.ray_engine import RayCluster

ENGINES = {"dask": ("distributed", DaskCluster), "ray": ("ray", RayCluster)}
LEFT_OUT = {("ray", "scheduler"): "Ray itself ends a program whose head node is lost"}


def contract(cluster: Any) -> str:
    """the contract of an executor"""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "tests/contract/test_given_executor.py",
        ],
        env={**os.environ, "FLOWPREGEL_TEST_CLUSTER": cluster.url},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise AssertionError(done.stdout[-3000:])
    return done.stdout.splitlines()[-1]


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__
    )
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--engine", choices=ENGINES, help="one engine alone")
    asked = parser.parse_args(arguments)
    if os.geteuid() or not shutil.which("ip"):
        print("skipped: this needs root and iproute2")
        return 0
    rows: list[tuple[str, str, float, str]] = []
    for name, (module, make) in ENGINES.items():
        if asked.engine not in (None, name):
            continue
        if importlib.util.find_spec(module) is None:
            print(f"skipped: {name} is not installed")
            continue
        steps: list[Callable[[Any], str]] = [contract, *DEATHS]
        for step in steps:
            if asked.only and step.__name__ not in asked.only:
                continue
            if reason := LEFT_OUT.get((name, step.__name__)):
                print(f"skipped: {name}: {step.__doc__}: {reason}")
                continue
            began = time.monotonic()
            with (
                machines(),
                tempfile.TemporaryDirectory() as folder,
                make(Path(folder)) as cluster,
            ):
                try:
                    found = "yes", step(cluster)
                except Exception as error:  # noqa: BLE001 - a row of the table
                    traceback.print_exc()
                    found = "NO", f"{type(error).__name__}: {error}"
            what = (step.__doc__ or "").splitlines()[0]
            rows.append(
                (f"{name}: {what}", found[0], time.monotonic() - began, found[1])
            )
            print(
                f"{rows[-1][1]:4} {rows[-1][2]:5.0f} s  {rows[-1][0]}  {found[1]}",
                flush=True,
            )
    print("\n| engine: what | held | seconds | |\n|---|---|---|---|")
    for what, held, seconds, more in rows:
        print(f"| {what} | {held} | {seconds:.0f} | {more} |")
    return int(any(held == "NO" for _, held, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())

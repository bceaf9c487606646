"""The executor on a SLURM cluster: a Dask cluster whose workers are jobs, which
dask-jobqueue submits while tasks wait.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from typing import Any, Final
from urllib.parse import parse_qsl

from dask_jobqueue.slurm import SLURMCluster
from distributed import Client

from flowpregel.errors import ConfigurationError
from flowpregel.plugins.cluster.dask import DaskExecutor
from flowpregel.units import bytes_of, seconds_in

_REQUIRED: Final = ("time", "mem")
"""The options that a URL must have."""
_DEFAULTS: Final = {"cpus": "1", "jobs": "10", "wait": "1d"}
"""The options that have a default, each with the default."""
_DIRECTIVES: Final = ("partition", "account", "qos", "constraint")
"""The options that are passed to ``sbatch`` under the same name."""
_OPTIONAL: Final = (*_DIRECTIVES, "interface", "logs")
"""The options that are empty by default."""
_DEATH_TIMEOUT: Final = 60
"""Seconds after which a job ends if it cannot connect to the program that submitted
it.
"""
_LEAVE_BEFORE: Final = 60.0
"""Seconds before the end of a job at which the Dask worker in it stops, and gives the
tasks back to the program.
"""


def connect_to_slurm(location: str) -> DaskExecutor:
    """Return an executor whose machines are jobs of SLURM.

    Jobs are submitted while tasks wait, and end when they have nothing to do.

    Args:
        location: The options of the jobs, such as ``?time=4h&mem=8G&cpus=2``.

    Raises:
        ConfigurationError: An option is unknown, missing or malformed, this machine has
            no ``sbatch``, or SLURM would not accept a job with these options.

    Example:
        >>> connect_to_slurm("?time=4h&mem=8G&cpus=2")  # doctest: +SKIP
    """
    options = parse_job_options(location)
    wait = duration_in_seconds("wait", options["wait"])
    maximum = _count("jobs", options["jobs"])
    settings = _cluster_settings(options)
    if shutil.which("sbatch") is None:
        raise ConfigurationError(
            "there is no sbatch on this machine: run the program on a login node of "
            "the cluster, or in a job"
        )
    cluster: Any = SLURMCluster(**settings)
    try:
        _check_script(cluster.job_script())
        cluster.adapt(minimum_jobs=0, maximum_jobs=maximum)
        return DaskExecutor.owning(Client(cluster, set_as_default=False), timeout=wait)
    except BaseException:
        cluster.close()
        raise


def parse_job_options(location: str) -> dict[str, str]:
    """Return the options of a URL, and the defaults of those that it does not have.

    Raises:
        ConfigurationError: An option is unknown, is given twice, or has no value, or a
            required option is missing.
    """
    options: dict[str, str] = {}
    known = [*_REQUIRED, *_DEFAULTS, *_OPTIONAL]
    for key, value in parse_qsl(location.removeprefix("?"), keep_blank_values=True):
        if key not in known:
            raise ConfigurationError(
                f"there is no option {key!r}; use {', '.join(known)}, as in "
                "slurm://?time=4h&mem=8G&partition=batch"
            )
        if not value or key in options or not value.isprintable():
            raise ConfigurationError(f"{key}={value!r}: give the option one value")
        options[key] = value
    missing = " and ".join(key for key in _REQUIRED if key not in options)
    if missing:
        raise ConfigurationError(f"{missing} must be given, as in ?time=4h&mem=8G")
    return dict.fromkeys(_OPTIONAL, "") | _DEFAULTS | options


def duration_in_seconds(name: str, text: str) -> float:
    """Return a duration such as 3h50m, or SLURM's 03:50:00 or 1-00:00:00, in seconds.

    Raises:
        ConfigurationError: *text* is not a duration. A number without a unit is
            refused, because SLURM reads it as minutes.
    """
    seconds = None if text.isdigit() else seconds_in(text)
    if not seconds:
        raise ConfigurationError(
            f"{name}={text!r}: use a duration such as 4h, 3h50m, 04:00:00 or 1-00:00:00"
        )
    return seconds


def _memory_of(text: str) -> int:
    """Return an amount of memory in bytes. K, M, G and T are powers of 1024, as for
    SLURM.
    """
    suffix = "iB" if text.endswith(("K", "M", "G", "T")) else ""
    try:
        size = bytes_of(text + suffix)
    except ConfigurationError:
        size = 0
    if size == 0 or text.isdigit():
        raise ConfigurationError(f"mem={text!r}: name an amount and its unit, as in 8G")
    return size


def _count(name: str, text: str) -> int:
    """Return the number of CPUs or jobs in the text of an option."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(f"{name}={text!r}: use a whole number from 1 on")
    return int(text)


def _cluster_settings(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of `SLURMCluster`."""
    seconds = duration_in_seconds("time", options["time"])
    lifetime = max(seconds - _LEAVE_BEFORE, seconds / 2)
    directives = [f"--{name}={options[name]}" for name in _DIRECTIVES if options[name]]
    if not options["logs"]:
        directives.append("--output=/dev/null")
    return {
        # The time is rounded up, because SLURM counts whole minutes.
        "walltime": str(math.ceil(seconds / 60)),
        "memory": f"{_memory_of(options['mem'])}B",
        "cores": _count("cpus", options["cpus"]),
        "processes": 1,
        "interface": options["interface"] or None,
        "log_directory": options["logs"] or None,
        "job_name": "flowpregel",
        "job_extra_directives": directives,
        # The Dask worker has no nanny (a process that would restart it), so that it
        # ends as soon as it has lost the program.
        "nanny": False,
        "death_timeout": _DEATH_TIMEOUT,
        "worker_extra_args": ["--lifetime", f"{lifetime:.0f}s"],
        "scheduler_options": {"dashboard": False, "dashboard_address": ":0"},
    }


def _check_script(script: str) -> None:
    """Ask SLURM whether it would accept a job, without submitting the job."""
    command = ["sbatch", "--test-only"]
    result = subprocess.run(
        command, input=script, capture_output=True, text=True, check=False
    )
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise ConfigurationError(f"SLURM does not accept the job: {reason}")

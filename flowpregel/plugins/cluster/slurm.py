"""An executor that submits jobs to SLURM while tasks wait, by dask-jobqueue."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from typing import Any, Final
from urllib.parse import parse_qsl

from dask.utils import parse_bytes
from dask_jobqueue.slurm import SLURMCluster
from distributed import Client

from flowpregel.errors import ConfigurationError
from flowpregel.plugins.cluster.dask import DaskExecutor

_OPTIONS: Final = {
    "time": "",
    "mem": "",
    "cpus": "1",
    "jobs": "10",
    "wait": "1d",
    "partition": "",
    "account": "",
    "qos": "",
    "constraint": "",
    "interface": "",
    "logs": "",
}
"""The options of a URL and their defaults. Those without a default may be left out,
except ``time`` and ``mem``.
"""
_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SLURM_TIME: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_SECONDS: Final = (86400, 3600, 60, 1)
"""The seconds of a unit, in the order of the groups of both expressions."""
_DEATH_TIMEOUT: Final = 60
"""Seconds after which a job ends that does not reach the program."""
_LEAVE_BEFORE: Final = 60.0
"""Seconds before the end of a job, at which the worker in it gives its tasks back."""


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
        client = Client(cluster, set_as_default=False)
        return DaskExecutor.owning(client, timeout=wait)
    except BaseException:
        cluster.close()
        raise


def parse_job_options(location: str) -> dict[str, str]:
    """Return the options of a URL, with the defaults of the others.

    Raises:
        ConfigurationError: An option is unknown, is given twice, or has no value, or a
            required option is missing.
    """
    name, _, query = location.partition("?")
    if name:
        raise ConfigurationError(
            f"{name!r} is no option: write slurm://?partition={name}&time=4h&mem=8G"
        )
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ConfigurationError(f"there is no option {key!r}; use {known}")
        if not value or key in options or not value.isprintable():
            raise ConfigurationError(f"{key}={value!r}: give the option one value")
        options[key] = value
    missing = [key for key in ("time", "mem") if key not in options]
    if missing:
        raise ConfigurationError(
            f"{' and '.join(missing)} must be given, for example "
            "slurm://?time=4h&mem=8G"
        )
    return _OPTIONS | options


def duration_in_seconds(name: str, text: str) -> float:
    """Return a duration such as 3h50m, or SLURM's 03:50:00 or 1-00:00:00, in seconds.

    Raises:
        ConfigurationError: *text* is none. A plain number is refused, because it means
            minutes to SLURM.
    """
    match = _DURATION.fullmatch(text) or _SLURM_TIME.fullmatch(text)
    numbers = match.groups(default="0") if match else ()
    pairs = zip(numbers, _SECONDS, strict=False)
    seconds = sum(int(number) * unit for number, unit in pairs)
    if seconds == 0:
        raise ConfigurationError(
            f"{name}={text!r}: use a duration such as 4h, 3h50m, 04:00:00 or 1-00:00:00"
        )
    return float(seconds)


def _memory_of(text: str) -> int:
    """Return the bytes of an amount of memory. The units K, M, G and T are SLURM's."""
    if text.isdigit():
        raise ConfigurationError(f"mem={text!r}: name the unit, as in 8G or 500M")
    is_slurm_unit = re.fullmatch(r"\d+[KMGT]", text)
    try:
        size: int = parse_bytes(f"{text}iB" if is_slurm_unit else text)
    except ValueError:
        size = 0
    if size <= 0:
        raise ConfigurationError(f"mem={text!r}: use an amount such as 8G")
    return size


def _count(name: str, text: str) -> int:
    """Return a number of CPUs or jobs."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(f"{name}={text!r}: use a whole number from 1 on")
    return int(text)


def _cluster_settings(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of `SLURMCluster`."""
    seconds = duration_in_seconds("time", options["time"])
    # SLURM counts whole minutes.
    minutes = math.ceil(seconds / 60)
    logs = options["logs"] or None
    directives = [] if logs else ["--output=/dev/null"]
    if options["qos"]:
        directives.append(f"--qos={options['qos']}")
    if options["constraint"]:
        directives.append(f"--constraint={options['constraint']}")
    lifetime = max(seconds - _LEAVE_BEFORE, seconds / 2)
    return {
        "queue": options["partition"] or None,
        "account": options["account"] or None,
        "interface": options["interface"] or None,
        "cores": _count("cpus", options["cpus"]),
        "processes": 1,
        "memory": f"{_memory_of(options['mem'])}B",
        "walltime": str(minutes),
        "job_name": "flowpregel",
        "job_extra_directives": directives,
        "log_directory": logs,
        # Without its nanny, a worker ends as soon as it has lost the program.
        "nanny": False,
        "death_timeout": _DEATH_TIMEOUT,
        "worker_extra_args": ["--lifetime", f"{lifetime:.0f}s"],
        "scheduler_options": {"dashboard": False, "dashboard_address": ":0"},
    }


def _check_script(script: str) -> None:
    """Ask SLURM whether it would accept a job, without submitting the job."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        command = ["sbatch", "--test-only", file.name]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise ConfigurationError(f"SLURM does not accept the job: {reason}")

"""What travels with a task: context variables, trace context, what structlog has
bound.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest

from flowpregel import carry
from flowpregel.channels import LastValue
from flowpregel.config import get_trace_context
from flowpregel.errors import ConfigurationError, TaskSerializationError
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.pregel import NodeBuilder, Pregel

EXECUTORS = ["inline", "threads", "processes"]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

tenant = carry(ContextVar("tenant", default="nobody"))
secret: ContextVar[Any] = ContextVar("secret", default="unset")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Leave no variable set."""
    tokens = tenant.set("nobody"), secret.set("unset")
    yield
    tenant.reset(tokens[0])
    secret.reset(tokens[1])


@task
def who(_: int = 0) -> str:
    return tenant.get()


@task
def ask(_: int = 0) -> list[str]:
    seen = [tenant.get(), who().result()]
    tenant.set("inner")
    return [*seen, who().result()]


@task
def rename(name: str) -> None:
    tenant.set(name)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_task_sees_the_variables_of_its_caller(drive: Any, executor: str) -> None:
    """As they were when it was called, on every executor."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[str]:
        seen = [who().result()]
        tenant.set("body")
        first = who()
        tenant.set("later")
        return [*seen, first.result(), who().result()]

    tenant.set("caller")

    assert ["caller", "body", "later"] == drive.invoke(flow, 0)
    assert "caller" == tenant.get()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_a_task_sets_stays_its_own(drive: Any, executor: str) -> None:
    """Neither its caller nor the next task sees it."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[str]:
        rename("changed").result()
        return [tenant.get(), who().result()]

    assert ["nobody", "nobody"] == drive.invoke(flow, 0)


def test_a_call_from_a_worker_carries_on(drive: Any) -> None:
    """With what the task itself has set."""

    @entrypoint(executor="processes")
    def flow(_: int) -> list[str]:
        return ask().result()

    tenant.set("outer")

    assert ["outer", "outer", "inner"] == drive.invoke(flow, 0)


def name_of_tenant(_: int) -> str:
    return tenant.get()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_node_sees_the_variables_of_who_started_the_run(
    drive: Any, executor: str
) -> None:
    """There is no other caller."""
    app = Pregel(
        nodes={
            "n": NodeBuilder().subscribe_only("in").do(name_of_tenant).write_to("out")
        },
        channels={"in": LastValue(int), "out": LastValue(str)},
        input_channels="in",
        output_channels="out",
        executor=executor,
    )
    tenant.set("starter")

    assert "starter" == drive.invoke(app, 1)


def test_a_variable_that_is_not_declared_says_how_it_would_be(drive: Any) -> None:
    """Where code that goes by value needs it."""
    local = secret

    @task
    def peek(_: int) -> Any:
        return local.get()

    @entrypoint(executor="processes")
    def flow(number: int) -> Any:
        return peek(number).result()

    with pytest.raises(
        TaskSerializationError, match=r"closure local.*flowpregel\.carry\(\)"
    ):
        drive.invoke(flow, 0)


def test_a_value_that_cannot_travel_is_named(drive: Any) -> None:
    """By the variable it is in."""

    @entrypoint(executor="processes")
    def flow(_: int) -> Any:
        return who().result()

    tenant.set(threading.Lock())  # type: ignore[arg-type]

    with pytest.raises(TaskSerializationError, match="context variable 'tenant'"):
        drive.invoke(flow, 0)


def test_only_context_variables_are_carried() -> None:
    """Anything else is refused at once."""
    with pytest.raises(ConfigurationError, match="ContextVar"):
        carry("tenant")  # type: ignore[arg-type]


PROGRAM = """
from contextvars import ContextVar
from flowpregel import carry
from flowpregel.func import entrypoint, task

user = carry(ContextVar("user", default="nobody"))
other = carry(ContextVar("other", default="default"))

@task
def who():
    return user.get(), other.get()

@entrypoint(executor="processes")
def flow(name):
    user.set(name)
    return who().result()

print(flow.invoke("ada"))
"""


@pytest.mark.slow
def test_variables_of_the_main_program_travel(tmp_path: Path) -> None:
    """A worker cannot import them; it has some that stand for them."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=60
    )

    assert "('ada', 'default')\n" == done.stdout, done.stderr


# ------------------------------------------------ trace context


@task
def traced(_: int = 0) -> dict[str, str]:
    return get_trace_context()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_trace_context_may_stand_in_the_config(drive: Any, executor: str) -> None:
    """For programs that trace without OpenTelemetry."""

    @entrypoint(executor=executor)
    def flow(_: int) -> dict[str, str]:
        return traced().result()

    config = {"configurable": {"traceparent": PARENT, "tracestate": "a=b", "else": 1}}

    assert {"traceparent": PARENT, "tracestate": "a=b"} == drive.invoke(flow, 0, config)


@task
def spanned(_: int = 0) -> tuple[str, str, dict[str, str]]:
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    ids = trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)
    return *ids, get_trace_context()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_current_span_of_opentelemetry_is_a_tasks_parent(
    drive: Any, executor: str
) -> None:
    """In the body, and in other processes."""
    trace = pytest.importorskip(
        "opentelemetry.trace", reason="the extra otel is not installed"
    )
    from opentelemetry.trace.propagation import tracecontext

    @entrypoint(executor=executor)
    def flow(_: int) -> Any:
        from opentelemetry import context as tracing

        carrier = {"traceparent": PARENT, "tracestate": "a=b"}
        token = tracing.attach(
            tracecontext.TraceContextTextMapPropagator().extract(carrier)
        )
        found = spanned().result()
        tracing.detach(token)
        return found

    found = drive.invoke(flow, 0)

    headers = {"traceparent": PARENT, "tracestate": "a=b"}
    assert (*PARENT.split("-")[1:3], headers) == tuple(found)
    assert not trace.get_current_span().get_span_context().is_valid


# ------------------------------------------------ log records


@task
def log_plainly(_: int) -> None:
    logging.getLogger("user.code").warning("at work")


def test_a_workers_log_record_says_whose_it_is(
    drive: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The run's fields are on it."""

    @entrypoint(executor="processes")
    def flow(number: int) -> None:
        log_plainly(number).result()

    drive.invoke(flow, 0, thread_id="t", run_id="3b2c4a4e-9f67-4f8e-bd64-5a3d5b6a7c01")

    record: Any = caplog.records[-1]
    assert ("t", "3b2c4a4e-9f67-4f8e-bd64-5a3d5b6a7c01") == (
        record.thread_id,
        record.run_id,
    )
    assert ("log_plainly", 1, record.process) == (
        record.task,
        record.attempt,
        record.pid,
    )


def log_quietly(_: int) -> None:
    logging.getLogger("user.quiet").debug("a detail")
    logging.getLogger("user.other").debug("nobody asked")


def test_a_worker_logs_at_the_levels_of_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As they are when the worker starts, each logger's own."""
    caplog.set_level(logging.DEBUG, "user.quiet")
    with ProcessExecutor(1) as pool:
        pool.submit(log_quietly, 1).result()

    assert ["a detail"] == [
        each.message for each in caplog.records if each.name[:5] == "user."
    ]


@task
def log_structured(number: int) -> None:
    import structlog

    log = structlog.get_logger("user.code")
    log.info("at work", number=number, thing=object)
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")


@pytest.mark.slow
def test_structlogs_events_arrive_with_the_runs_fields(drive: Any) -> None:
    """And with what the caller has bound; this program's processors see them."""
    import structlog

    @entrypoint(executor="processes")
    def flow(number: int) -> None:
        structlog.contextvars.bind_contextvars(request="r1", live=drive)
        # Twice: a worker that imports structlog in a task knows it from the next one
        # on.
        log_structured(number).result()
        log_structured(number).result()

    with structlog.testing.capture_logs() as events:
        drive.invoke(flow, 7, thread_id="t")

    event, failed = events[-2:]
    assert ("at work", 7, "r1", "info") == (
        event["event"],
        event["number"],
        event["request"],
        event["log_level"],
    )
    assert ("log_structured", "t", 1) == (
        event["task"],
        event["thread_id"],
        event["attempt"],
    )
    assert event["live"] == repr(drive)
    assert "ValueError: boom" in failed["exception"]


def test_a_processor_that_raises_costs_nobody_anything(
    drive: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on; the program's log says so."""
    import structlog

    def refuse(*_: Any) -> Any:
        raise LookupError("no")

    @entrypoint(executor="processes")
    def flow(number: int) -> int:
        structlog.contextvars.bind_contextvars(request="r1")
        log_structured(number).result()
        return number

    structlog.configure(processors=[refuse])
    try:
        assert 3 == copy_context().run(drive.invoke, flow, 3)
    finally:
        structlog.reset_defaults()

    assert "structlog could not process" in caplog.text

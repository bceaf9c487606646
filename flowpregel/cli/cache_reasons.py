"""The text that the command `why` shows for a call with shared results: whether the
cache has its result, and which part of the key has changed.

::

    key = the task's name + its code + the arguments, with the content of files
                            │          │
                            │          └─ compared with the same call of an earlier run
                            └─ compared with the codes that the cache has noted
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from flowpregel._core.files import changed_files
from flowpregel._core.provenance import VERSION
from flowpregel._core.spelling import Spelled, spelling_of
from flowpregel._engine.shared_results import without_lost_values
from flowpregel._inspection.call_previews import preview_of
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.run_tasks import work_of_last_run
from flowpregel._pickling.digest import (
    arguments_digest,
    digest_of,
    has_plain_values,
)
from flowpregel.checkpoint.base import FLOW
from flowpregel.cli import targets
from flowpregel.cli.reasons import tasks_beside
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.cache_misses import (
    OTHER_CODE,
    earlier_change,
    noted_namespaces,
)
from flowpregel.pregel.changed_files import changes_since

if TYPE_CHECKING:
    from flowpregel.cache.base import BaseCache, FullKey, Namespace
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.checkpoint.work import Work
    from flowpregel.pregel.pregel import Pregel

_PLAIN_TEXT: Final = re.compile(r"<int of |<redacted>|\b(?:nan|inf)\b")
"""A pattern for the texts of those plain values (nan, and very long ints, for example)
that are not literals of Python, and of arguments that are not shown.
"""
_MOST_RUNS: Final = 20
"""The number of earlier runs in which the same call is searched for."""
_UNKNOWN_ARGUMENTS: Final = (
    "the result cannot be found in the cache, because the arguments are not recorded "
    "in full"
)
_LOST_VALUE: Final = (
    "the result in the cache refers to a stored value that is gone; a new run computes "
    "it again"
)


def cache_text(work: Work, flow: Pregel, store: str | None) -> str:
    """Return a sentence about the shared result of a call.

    The sentence is empty if the task of the call shares no results.

    Args:
        work: The call.
        flow: The workflow that the run belongs to.
        store: The value of ``--store``. No store may be open at this path.
    """
    if work.call_key is None or work.state != "done":
        return ""
    name = work.call_key.name
    tasks = [task for task in tasks_beside(flow) if task.name == name]
    policy = tasks[0].options.shares if tasks else None
    if policy is None:
        return ""
    if policy.key_func is not None:
        return "the key is made by the key_func of the task, and is not compared"
    arguments = _digest_in_cache(tasks[0], work)
    if arguments is None:
        return _UNKNOWN_ARGUMENTS
    try:
        namespace = tasks[0].cache_namespace
    except ConfigurationError as error:
        return str(error)
    with ExitStack() as resources:
        saver = resources.enter_context(_open_store(store, flow))
        on_store = flow.copy({"checkpointer": saver})
        cache = on_store.definition.open_cache(resources)
        if cache is None:
            return ""
        key = _key_in(cache, namespace, arguments)
        return _text_of_key(cache, key, work, saver)


def _open_store(store: str | None, flow: Pregel) -> DurableSaver:
    """Open the store of a run of *flow*, so that the cache of the flow can be opened,
    too.
    """
    if flow.definition.cache is not None:
        return targets.open_to_read(store)
    # The cache in the store of the runs opens this store for writing. That is an error
    # while the same process has the store open read-only.
    return targets.open_to_write(store, InertCodec())


def _key_in(cache: BaseCache, namespace: Namespace, arguments: str) -> FullKey:
    """Return the key of a result in a cache.

    Args:
        cache: The cache to search.
        namespace: The namespace of the task.
        arguments: The digest of the arguments.
    """
    task, _, *labels = namespace
    # A script's functions are in the module `__main__` while the script runs. The runs
    # may have been made by a script, so the cache namespace with that module is tried
    # too.
    script = (task, "__main__", *labels)
    for candidate in (namespace, script):
        if cache.get([(candidate, arguments)]):
            return candidate, arguments
    is_script = not noted_namespaces(cache, namespace)
    return (script if is_script else namespace), arguments


def _text_of_key(
    cache: BaseCache,
    key: FullKey,
    work: Work,
    saver: DurableSaver,
) -> str:
    """Return a sentence about the key of a call in a cache."""
    assert work.call_key is not None
    file_changes = changes_since(work.call_key.files)
    if file_changes:
        return f"a new run has another key: {'; '.join(file_changes)}"
    namespace, _ = key
    results = cache.get([key])
    if not results:
        change = earlier_change(cache, key, {namespace})
        if change:
            return f"{OTHER_CODE}, and are computed again: {change}"
        return "the cache has no result for these arguments; a new run computes it"
    if not without_lost_values(results):
        return _LOST_VALUE
    text = "a new run uses the result in the cache"
    code = work.call_key.code.removeprefix(VERSION)
    is_from_cache = work.ran is not None and not work.ran.attempts
    if is_from_cache or code not in namespace:
        return text
    noted = noted_namespaces(cache, namespace)
    later = noted[noted.index(namespace) :] if namespace in noted else [namespace]
    change = earlier_change(cache, key, later)
    if change:
        return f"{text}; this run computed it, because {OTHER_CODE}: {change}"
    change = _argument_change(work, saver)
    if change:
        return f"{text}; this run computed it, because {change}"
    return text


# ---------------------------------------------------------------- arguments


def _digest_in_cache(task: Any, work: Work) -> str | None:
    """Return the digest that the keys of a cache have for a call's arguments, or None
    if it is unknown.

    If all arguments are plain values, such as numbers, the digest in the record of the
    call differs from the one in the cache. In that case, the arguments are read from
    the text of the call, and the digest in the cache is computed from them. The
    recorded digest shows whether that text was cut.
    """
    assert work.call_key is not None
    recorded = work.call_key.arguments
    try:
        args, kwargs = _literal_arguments(work.call_key.text)
    except (SyntaxError, ValueError):
        # The arguments cannot be read from the text of the call. If the reason may be a
        # plain value whose text is not a literal, such as nan, the digest in the cache
        # is unknown. Otherwise an argument is not a plain value, so the record and the
        # cache have the same digest.
        is_plain = _PLAIN_TEXT.search(work.call_key.text) is not None
        return None if is_plain else recorded
    spelled, named = spelling_of(task.func).of(args, kwargs)
    description = f"the arguments of {task.name!r}"
    if arguments_digest(spelled, named, description) == recorded:
        return digest_of((spelled, dict(named)), description, strict=True)
    return None if has_plain_values(spelled, named) else recorded


def _literal_arguments(text: str) -> Spelled:
    """Return the arguments in the text of a call.

    Raises:
        SyntaxError: The text is not an expression of Python.
        ValueError: An argument is not a literal.
    """
    expression = ast.parse(text, mode="eval").body
    if not isinstance(expression, ast.Call):
        raise ValueError(text)
    args = tuple(ast.literal_eval(argument) for argument in expression.args)
    kwargs: dict[str, Any] = {}
    for keyword in expression.keywords:
        kwargs[str(keyword.arg)] = ast.literal_eval(keyword.value)
    return args, kwargs


def _argument_change(work: Work, saver: DurableSaver) -> str:
    """Return the change of the arguments since the same call of an earlier run.

    The string is empty if no earlier run called the task, or if one called it with
    equal arguments.
    """
    assert work.call_key is not None
    earlier = [call for calls in _calls_of_earlier_runs(work, saver) for call in calls]
    digests = {call.call_key.arguments for call in earlier if call.call_key}
    if not earlier or work.call_key.arguments in digests:
        return ""
    call = _same_call(work, earlier)
    if call is None:
        return "no earlier run had these arguments"
    changes = [*_changes_between(call, work)]
    return "; ".join(changes) or "the content of the arguments changed"


def _changes_between(earlier: Work, work: Work) -> Iterator[str]:
    """Yield a description of each file and each field of the arguments that differs."""
    assert earlier.call_key is not None
    assert work.call_key is not None
    for _, text in changed_files(earlier.call_key.files, work.call_key.files):
        yield text
    before = preview_of(earlier.ran).arguments
    for name, value in preview_of(work.ran).arguments.items():
        if name in before and repr(before[name]) != repr(value):
            yield f"argument {name}: {before[name]!r} -> {value!r}"


def _same_call(work: Work, earlier: Sequence[Work]) -> Work | None:
    """Return the newest earlier call with the same text or, without one, with the same
    position in the run.
    """
    for call in earlier:
        if call.name == work.name:
            return call
    for call in earlier:
        if call.path and call.path == work.path:
            return call
    return None


def _calls_of_earlier_runs(work: Work, saver: DurableSaver) -> Iterator[list[Work]]:
    """Yield the calls of the same task in earlier runs of the flow, newest first."""
    assert work.call_key is not None
    run = saver.thread(work.address.thread_id)
    if run is None:
        return
    earlier = [
        thread
        for thread in saver.threads()
        if thread.created < run.created
        and thread.metadata.get(FLOW) == run.metadata.get(FLOW)
    ]
    earlier.sort(key=lambda thread: thread.created, reverse=True)
    for thread in earlier[:_MOST_RUNS]:
        tasks = work_of_last_run(saver, thread.thread_id)
        yield [task for task in tasks if _has_name(task, work.call_key.name)]


def _has_name(work: Work, name: str) -> bool:
    return work.call_key is not None and work.call_key.name == name

"""The methods of LangChain's `Runnable` that graphs and nodes have.

LangChain is not a dependency, so the classes here do not derive from `Runnable`. They
are registered with it as virtual subclasses, and their methods pass the call to the
function that `Runnable` has under the same name. LangChain is imported by the first
call, if at all.

::

    import flowpregel
      |
      +-- LangChain is imported: `Runnable.register(RunnableMethods)`
      |
      +-- it is not: an import hook waits for LangChain, and registers then

    isinstance(graph, Runnable)     true in both cases
    function | graph | function     a LangChain chain with the graph as one step
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from flowpregel.errors import ConfigurationError

_MODULE: Final = "langchain_core.runnables.base"
"""The module that defines `Runnable`."""


def runnable_class(use: str) -> Any:
    """Return LangChain's class `Runnable`.

    Args:
        use: The operation that needs the class, for the error.

    Raises:
        ConfigurationError: LangChain is not installed.
    """
    try:
        from langchain_core.runnables import Runnable  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"{use} makes a LangChain Runnable, and langchain-core is not installed; "
            "get it with: pip install 'flowpregel[langchain]'"
        ) from error
    return Runnable


def parts_of_chain(step: Any) -> list[Any]:
    """Return the parts of a chain of LangChain, or *step* itself if it is no chain."""
    module = sys.modules.get(_MODULE)
    if module is None or type(step) is not module.RunnableSequence:
        return [step]
    return list(step.steps)


class RunnableMethods:
    """A mixin with methods of LangChain's `Runnable`.

    For Python, instances are Runnables: ``isinstance(graph, Runnable)`` is true. The
    operator ``|`` joins them with other Runnables, functions and dicts to a chain.

    Example:
        >>> from flowpregel import entrypoint
        >>> @entrypoint()
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> chain = int | double | {"text": str, "digits": lambda n: len(str(n))}
        >>> chain.invoke("21")
        {'text': '42', 'digits': 2}

        The other methods return Runnables too:

        >>> double.pipe(double, str).invoke(3)
        '12'
        >>> divide = double.pipe(lambda n: {"n": n}).assign(half=lambda d: d["n"] / 2)
        >>> divide.invoke(3), divide.pick("half").invoke(3)
        ({'n': 6, 'half': 3.0}, 3.0)
        >>> safe = double.with_retry(stop_after_attempt=2).with_fallbacks([double])
        >>> safe.invoke(3), safe.with_types(input_type=int).InputType
        (6, <class 'int'>)
        >>> double.with_listeners(on_start=lambda run: print(run.inputs)).invoke(3)
        {'input': 3}
        6
        >>> sorted(double.batch_as_completed([1, 2]))
        [(0, 2), (1, 4)]
    """

    # ------------------------------------------------------------ chains

    def __or__(self, other: Any) -> Any:
        """Return a chain that passes the output to *other*: a Runnable, a function, or
        a dict of these.

        Raises:
            ConfigurationError: LangChain is not installed.
            TypeError: *other* cannot be a step of a chain.
        """
        return runnable_class("|").__or__(self, other)

    def __ror__(self, other: Any) -> Any:
        """Return a chain that gets its input from *other*: a function, or a dict of
        Runnables and functions.

        Raises:
            ConfigurationError: LangChain is not installed.
            TypeError: *other* cannot be a step of a chain.
        """
        return runnable_class("|").__ror__(self, other)

    def pipe(self, *others: Any, name: str | None = None) -> Any:
        """Return a chain that passes the output to each of *others* in turn.

        Args:
            others: Runnables, functions, or dicts of these.
            name: The name of the chain.
        """
        return runnable_class("pipe").pipe(self, *others, name=name)

    def pick(self, keys: str | list[str]) -> Any:
        """Return a chain whose output is a part of the graph's output.

        Args:
            keys: A key of the output, to get the value; or several keys, to get a dict.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def split(text: str) -> dict[str, str]:
            ...     return {"first": text[0], "rest": text[1:]}
            >>> split.pick("first").invoke("abc")
            'a'
        """
        return runnable_class("pick").pick(self, keys)

    def assign(self, **steps: Any) -> Any:
        """Return a chain that adds keys to the graph's output.

        Args:
            steps: For each key, a Runnable or a function of the output.
        """
        return runnable_class("assign").assign(self, **steps)

    def map(self) -> Any:
        """Return a Runnable that runs each item of a list, and returns the list of the
        outputs.
        """
        return runnable_class("map").map(self)

    # ------------------------------------------------------------ changed Runnables

    def bind(self, **keywords: Any) -> Any:
        """Return a Runnable that passes *keywords* to each run.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.bind(stream_mode="updates").invoke(4)
            [{'double': 8}]
        """
        return runnable_class("bind").bind(self, **keywords)

    def with_types(
        self,
        *,
        input_type: Any = None,
        output_type: Any = None,
    ) -> Any:
        """Return a Runnable with other types in its schemas.

        Args:
            input_type: The type of the input, or None for the type of the graph.
            output_type: The type of the output, or None for the type of the graph.
        """
        return runnable_class("with_types").with_types(
            self, input_type=input_type, output_type=output_type
        )

    def with_retry(self, **options: Any) -> Any:
        """Return a Runnable that repeats a failed run.

        To repeat a node instead of the run, use `RetryPolicy`.

        Args:
            options: The options of LangChain's ``with_retry``: ``stop_after_attempt``,
                ``retry_if_exception_type``, ``wait_exponential_jitter`` and others.
        """
        return runnable_class("with_retry").with_retry(self, **options)

    def with_fallbacks(self, fallbacks: Sequence[Any], **options: Any) -> Any:
        """Return a Runnable that tries *fallbacks* in turn if a run fails.

        Args:
            fallbacks: Runnables with the same input.
            options: The options of LangChain's ``with_fallbacks``:
                ``exceptions_to_handle`` and ``exception_key``.
        """
        return runnable_class("with_fallbacks").with_fallbacks(
            self, fallbacks, **options
        )

    def with_listeners(self, **listeners: Any) -> Any:
        """Return a Runnable that calls functions with LangChain's record of a run.

        Args:
            listeners: The functions ``on_start``, ``on_end`` and ``on_error``.
        """
        return runnable_class("with_listeners").with_listeners(self, **listeners)

    def as_tool(
        self,
        args_schema: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: dict[str, type] | None = None,
    ) -> Any:
        """Return a LangChain tool that a model can call, and that runs the graph.

        Args:
            args_schema: A pydantic model of the tool's arguments. By default the
                arguments are the keys of the input.
            name: The name of the tool.
            description: The description of the tool, which models read.
            arg_types: The types of the arguments, if the input has no types.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def add(left: int, right: int) -> int:
            ...     return left + right
            >>> types = {"left": int, "right": int}
            >>> tool = add.as_tool(arg_types=types)  # doctest: +SKIP
            >>> tool.name, tool.invoke({"left": 1, "right": 2})  # doctest: +SKIP
            ('add', 3)
        """
        return runnable_class("as_tool").as_tool(
            self,
            args_schema,
            name=name,
            description=description,
            arg_types=arg_types,
        )

    # ------------------------------------------------------------ runs

    def transform(
        self,
        input: Iterator[Any],
        config: Any = None,
        **keywords: Any,
    ) -> Iterator[Any]:
        """Join the parts of an input, run, and yield the items of the stream.

        A chain that is streamed calls this method.

        Args:
            input: The parts of the input.
            config: LangChain's config.
            keywords: As `stream` takes them.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> list(double.transform(iter([1, 2])))
            [{'double': 6}]
        """
        function = runnable_class("transform").transform
        yield from function(self, input, config, **keywords)

    async def atransform(
        self,
        input: AsyncIterator[Any],
        config: Any = None,
        **keywords: Any,
    ) -> AsyncIterator[Any]:
        """`transform`, on the running event loop."""
        function = runnable_class("atransform").atransform
        async for item in function(self, input, config, **keywords):
            yield item

    def batch_as_completed(
        self,
        inputs: Sequence[Any],
        config: Any = None,
        **keywords: Any,
    ) -> Iterator[tuple[int, Any]]:
        """Run on all *inputs* in parallel, and yield outputs as runs end.

        Args:
            inputs: The input of each run.
            config: One config for all runs, or a list with one config for each run.
            keywords: As `batch` takes them.

        Yields:
            The position of the input, and the output.
        """
        function = runnable_class("batch_as_completed").batch_as_completed
        yield from function(self, inputs, config, **keywords)

    async def abatch_as_completed(
        self,
        inputs: Sequence[Any],
        config: Any = None,
        **keywords: Any,
    ) -> AsyncIterator[tuple[int, Any]]:
        """`batch_as_completed`, on the running event loop."""
        function = runnable_class("abatch_as_completed").abatch_as_completed
        async for item in function(self, inputs, config, **keywords):
            yield item

    async def astream_events(
        self,
        input: Any,
        config: Any = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Run on the running event loop, and yield LangChain's events.

        There are events for the run, for its nodes, and for the answers that models
        stream.

        Args:
            input: The input of the run.
            config: LangChain's config.
            options: The options of LangChain's ``astream_events``: ``version``,
                ``include_names``, ``exclude_names``, ``include_types`` and others; and
                the keywords of the graph's ``astream``.

        Example:
            >>> import asyncio
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> async def names() -> list[str]:
            ...     events = double.astream_events(4)
            ...     return [event["event"] async for event in events]
            >>> asyncio.run(names())[-1]
            'on_chain_end'
        """
        function = runnable_class("astream_events").astream_events
        from flowpregel.pregel.runnable_events import (  # noqa: PLC0415 - an extra
            event_source,
        )

        source = event_source(self)
        async for event in function(source, input, config, **options):
            yield event

    # ------------------------------------------------------------ descriptions

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Return the name, with *suffix* added.

        Args:
            suffix: A word such as ``"input"``.
            name: The name to use instead of the graph's.

        Example:
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.get_name(), double.get_name("input")
            ('double', 'double_input')
        """
        full_name = name or getattr(self, "name", None) or type(self).__name__
        if not suffix:
            return str(full_name)
        if full_name[0].isupper():
            return f"{full_name}{suffix.title()}"
        return f"{full_name}_{suffix.lower()}"

    @property
    def config_specs(self) -> list[Any]:
        """The fields of ``configurable`` that LangChain lists: none."""
        return []


# ---------------------------------------------------------------- isinstance


def _register(module: Any) -> bool:
    """Make graphs and nodes subclasses of the `Runnable` in *module*, and return
    whether *module* has it.
    """
    runnable = getattr(module, "Runnable", None)
    if runnable is None:
        return False
    runnable.register(RunnableMethods)
    return True


class LangChainWatcher:
    """An import hook that registers graphs and nodes with `Runnable` once LangChain has
    been imported. Then it removes itself.

    LangChain's own checks use `isinstance`, and a program may import LangChain after
    it has made a graph. An abstract base class can be asked to accept other classes
    only by registration, so the registration must follow the import.
    """

    def __init__(self) -> None:
        self._has_found = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the module that defines `Runnable`, and None for any other
        module.
        """
        if name != _MODULE or self._has_found:
            return None
        # Imported inside the method, because a program without LangChain does not need
        # it.
        from importlib.util import find_spec  # noqa: PLC0415

        self._has_found = True
        # If another tool has put a wrapper around this import hook in the list, the
        # hook cannot be removed. It then stays, and has no further effect.
        with suppress(ValueError):
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            call_after_import(spec.loader, _register)
        return spec


def call_after_import(loader: Any, function: Callable[[Any], Any]) -> None:
    """Have *loader* call *function* with the module of `Runnable`, once the loader has
    executed the module.

    A loader that cannot be changed is left alone: LangChain is imported all the same.
    """
    execute: Any = getattr(loader, "exec_module", None)

    def execute_and_call(module: Any) -> None:
        execute(module)
        # The loader may execute other modules before `_MODULE`, because all modules of
        # a zip archive share one loader. Only `_MODULE` is passed to *function*.
        if module.__name__ == _MODULE:
            loader.exec_module = execute
            function(module)

    if execute is not None:
        with suppress(AttributeError):
            loader.exec_module = execute_and_call


if not _register(sys.modules.get(_MODULE)):
    sys.meta_path.insert(0, LangChainWatcher())

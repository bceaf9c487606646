"""The parameters of a workflow's function, whose values form the workflow's input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flowpregel._annotations import signature_of
from flowpregel._core.commands import Command, injections_of
from flowpregel._core.records import Arguments
from flowpregel._text import did_you_mean
from flowpregel.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FlowParameters:
    """The parameters of a workflow, without the parameters that the run fills in.

    If there is one parameter, its value is the workflow's input. If there are several,
    the input is a dict of their values by name.

    Args:
        name: The name of the workflow, for messages.
        signature: The parameters of the workflow.
        options: The names of the run options, which are passed among the arguments.
    """

    name: str
    signature: inspect.Signature
    options: tuple[str, ...] = ()

    @property
    def is_one(self) -> bool:
        """True if there is a single parameter, whose value itself is the input."""
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        return len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_KEYWORD

    def signature_with(self, options: Mapping[str, Any]) -> inspect.Signature:
        """Return the signature with *options* (defaults by name) as additional
        keyword-only parameters.
        """
        parameters = dict(self.signature.parameters)
        for name, default in options.items():
            keyword = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default
            )
            parameters.setdefault(name, keyword)
        in_order = sorted(parameters.values(), key=attrgetter("kind"))
        return self.signature.replace(parameters=in_order)

    def input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the input of a run with these arguments.

        Raises:
            TypeError: The arguments do not match the signature.
            ConfigurationError: The workflow has a parameter such as ``*args``.
        """
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise ConfigurationError(
                    f"workflow {self.name!r} takes *{parameter.name}: to use run(), "
                    "replace it with a parameter for a list"
                )
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}{self._hint(kwargs)}") from None
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        if self.is_one:
            (value,) = arguments.values()
            if not _means_more(value):
                return value
        return arguments

    def _hint(self, kwargs: Mapping[str, Any]) -> str:
        """Describe the accepted arguments, for the error that one of *kwargs* is not
        accepted.
        """
        text = f"; it takes {self.signature}"
        if self.options:
            names = (
                "id='...'" if name == "id" else f"{name}=" for name in self.options
            )
            text += f"; a run also takes {', '.join(names)}"
        known = [*self.signature.parameters, *self.options]
        unknown = next((name for name in kwargs if name not in known), "")
        return text + did_you_mean(unknown, known)

    def arguments_of(self, run_input: Any) -> Any:
        """Convert the input of a run to the arguments of the body: an `Arguments`, or,
        if there is only one positional argument, that argument itself.
        """
        parameters = self.signature.parameters
        if not self._is_by_name(run_input):
            first = next(iter(parameters.values()), None)
            if first is not None and first.kind is first.KEYWORD_ONLY:
                return Arguments((), {first.name: run_input})
            return run_input
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, value in run_input.items():
            match parameters[name].kind:
                case inspect.Parameter.POSITIONAL_ONLY:
                    args.append(value)
                case inspect.Parameter.VAR_KEYWORD:
                    kwargs.update(value)
                case _:
                    kwargs[name] = value
        return Arguments(tuple(args), kwargs)

    def _is_by_name(self, run_input: Any) -> bool:
        """Return whether *run_input* is a dict of parameter values by name, and not
        itself the value of the only parameter.
        """
        if not isinstance(run_input, dict) or not run_input:
            return False
        parameters = self.signature.parameters
        if self.is_one:
            if run_input.keys() != parameters.keys():
                return False
            return all(map(_means_more, run_input.values()))
        required: set[str] = set()
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.default is parameter.empty:
                required.add(name)
        return required <= run_input.keys() <= parameters.keys()


def _means_more(value: Any) -> bool:
    """Return whether *value* would have a special meaning if it were the input itself:
    None resumes a run, and a `Command` instructs it.
    """
    return value is None or isinstance(value, Command)


def parameters_of(func: Callable[..., Any], name: str) -> FlowParameters:
    """Return the parameters of *func* that the caller passes. If the signature of
    *func* cannot be read, assume one positional parameter.
    """
    try:
        signature = signature_of(func)
    except (TypeError, ValueError):
        only = inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)
        return FlowParameters(name, inspect.Signature([only]))
    injected = {injection.name for injection in injections_of(func, takes_input=True)}
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name not in injected
    ]
    return FlowParameters(name, signature.replace(parameters=parameters))

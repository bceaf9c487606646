"""The command lines in messages, as a shell and ``flowpregel`` read them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_END_OF_OPTIONS = "--"
_ESCAPES = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def command_words(
    name: str,
    *arguments: str,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the words of a command.

    If an argument begins with a dash, all arguments follow two dashes, so that it is
    not read as an option.

    Args:
        name: The name of the command.
        arguments: The arguments of the command.
        options: The options of the command, with their values.

    Example:
        >>> command_words("show", "study", options=["--limit", "3"])
        ('show', 'study', '--limit', '3')
        >>> command_words("show", "-study", options=["--limit", "3"])
        ('show', '--limit', '3', '--', '-study')
    """
    if any(argument.startswith("-") for argument in arguments):
        return (name, *options, _END_OF_OPTIONS, *arguments)
    return (name, *arguments, *options)


def with_options(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command with more options.

    Args:
        words: The words, which `command_words` returned.
        options: The options, with their values.

    Example:
        >>> with_options(["show", "--", "-study"], ["--store", "runs.lmdb"])
        ['show', '--store', 'runs.lmdb', '--', '-study']
    """
    end = len(words)
    if _END_OF_OPTIONS in words:
        end = words.index(_END_OF_OPTIONS)
    return [*words[:end], *options, *words[end:]]


def command_line(words: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return the line that runs a command of ``flowpregel`` in a shell.

    Args:
        words: The words, which `command_words` returned.
        options: More options, with their values.

    Example:
        >>> command_line(command_words("show", "my study"), ["--store", "runs.lmdb"])
        "flowpregel show 'my study' --store runs.lmdb"
        >>> print(command_line(command_words("show", "a\\nb")))
        flowpregel show $'a\\nb'
    """
    all_words = ["flowpregel", *with_options(words, options)]
    return " ".join(map(_shell_word, all_words))


def _shell_word(word: str) -> str:
    """Return a word in the quotes that a shell needs.

    Nonprintable characters are written as escapes, which bash, zsh and other shells
    read between ``$'`` and ``'``.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_shell_escape, word))}'"


def _shell_escape(character: str) -> str:
    """Return a character in the form that it has between ``$'`` and ``'``."""
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="replace"))

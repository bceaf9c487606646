"""Text from elsewhere, without what a terminal, a page or a drawing would obey."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return *text* with all that does not print, but for ends of lines, as Python writes it.

    That is what begins an escape sequence, and what turns the direction of text round.

    Example:
        >>> printable("\\x1b[2J")
        '\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def in_one_line(text: str) -> str:
    """Return *text* as `printable` does, its ends of lines too."""
    return printable(text).replace("\n", "\\n")

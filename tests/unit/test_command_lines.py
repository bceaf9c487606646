"""The command lines in messages, as a shell reads them."""

from __future__ import annotations

import subprocess

import pytest

from flowpregel._shell import command_line, command_words

UNUSUAL = [
    "-q5",
    "--all",
    "--",
    "it's",
    "a\\b",
    "a\nb",
    "\x1b[2J",
    "\u202eexe",
    "a\tb'c",
]


@pytest.mark.parametrize("word", UNUSUAL)
def test_a_shell_reads_the_words_that_were_meant(word: str) -> None:
    line = command_line(command_words("show", word), ["--store", "a b"])
    script = f"flowpregel() {{ printf '%s\\0' \"$@\"; }}; {line}"
    output = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    options = ["--store", "a b"]
    expected = ["show", word, *options]
    if word.startswith("-"):
        expected = ["show", *options, "--", word]

    assert line.isprintable()
    assert expected == output.stdout.decode().split("\0")[:-1]


def test_arguments_follow_two_dashes_only_where_one_begins_with_a_dash() -> None:
    usual = command_words("answer", "study", "VALUE", options=["--id", "7"])
    dashed = command_words("answer", "study", "-1", options=["--id", "7"])

    assert ("answer", "study", "VALUE", "--id", "7") == usual
    assert ("answer", "--id", "7", "--", "study", "-1") == dashed

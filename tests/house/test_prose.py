"""The pages of the documentation are plain English, and easy to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import prose

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = ("docs/changelog.md", "docs/explanation/decisions/")
"""Pages about the past, which are not rewritten with each rule."""
IN_RECORDS = 165
"""The banned phrases that pages about the past still have: the number may only
shrink.
"""
GENERATED = "docs/reference/api"
"""Pages made from docstrings, which have rules of their own."""
NAVIGATION = "docs/index.md"
"""A page of links, whose longest list is one sentence."""


def name_of(page: Path) -> str:
    """Return the path of *page* below the root of the project."""
    return page.relative_to(ROOT).as_posix()


LIVE = [page for page in PAGES if not name_of(page).startswith((*RECORDS, GENERATED))]
PAST = [page for page in PAGES if name_of(page).startswith(RECORDS)]


@pytest.mark.parametrize("page", LIVE, ids=name_of)
def test_a_page_has_no_banned_phrase(page: Path) -> None:
    """Paraphrases give way to the terms of the field: see `prose.BANNED`."""
    assert [] == prose.banned_phrases(page.read_text("utf-8"))


@pytest.mark.parametrize("page", LIVE, ids=name_of)
def test_a_page_is_easy_to_read(page: Path) -> None:
    """The Flesch reading ease of a page is not below the floor."""
    assert prose.reading_ease(page.read_text("utf-8")) >= prose.EASE


@pytest.mark.parametrize("page", LIVE, ids=name_of)
def test_a_sentence_of_a_page_is_short(page: Path) -> None:
    """No sentence has more words than a reader can keep in mind."""
    if name_of(page) != NAVIGATION:
        assert [] == prose.long_sentences(page.read_text("utf-8"))


def test_pages_about_the_past_gain_no_banned_phrase() -> None:
    """New decisions and entries of the changelog are plain English too."""
    phrases = [prose.banned_phrases(page.read_text("utf-8")) for page in PAST]

    assert sum(map(len, phrases)) <= IN_RECORDS


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("The run goes on where it was.", ["goes on"]),
        ("Nobody reads a word | whoever does.", ["Nobody", "whoever"]),
        ("Read [what it is told](told.md).", ["is told"]),
        ("The option is to be set; the call is to run.", ["is to run"]),
        ("Send `nobody` and\n```text\nit goes on\n```\n", []),
        ("<!-- it goes on --> ![it goes on](x.svg) The run resumes.", []),
    ],
)
def test_banned_phrases_are_found_in_text_alone(text: str, phrases: list[str]) -> None:
    """Code, comments and targets of links are not prose; the text of links is."""
    assert phrases == prose.banned_phrases(text)


def test_a_sentence_ends_at_its_full_stop_or_at_the_next_item() -> None:
    """Headings, tables and code are no sentences."""
    page = "# Title\n\nOne two. Three\nfour:\n\n* five\n* six `a b`\n\n| x | y |\n"

    assert ["One two.", "Three four:", "* five", "* six code"] == prose.sentences_of(
        page
    )


def test_a_long_sentence_is_found() -> None:
    """A sentence may have `prose.LONGEST` words, and none more."""
    words = " ".join(["word"] * prose.LONGEST)

    assert [] == prose.long_sentences(f"{words}.")
    assert [f"{words} word."] == prose.long_sentences(f"{words} word.")


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("run", 1),
        ("called", 1),
        ("started", 2),
        ("resume", 2),
        ("table", 2),
        ("processes", 3),
        ("documentation", 5),
    ],
)
def test_syllables_are_groups_of_vowels(word: str, count: int) -> None:
    """A silent e counts for nothing, and a syllabic l counts."""
    assert count == prose.syllables(word)


def test_long_words_and_long_sentences_are_harder_to_read() -> None:
    """The score is that of Flesch's formula."""
    easy = "The run stops. The run starts."
    hard = "Idempotency considerations necessitate comprehensive documentation."

    assert prose.reading_ease(hard) < prose.EASE < prose.reading_ease(easy)
    assert 100.0 == prose.reading_ease("```python\nprint()\n```\n")

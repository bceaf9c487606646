"""Rules for the prose of the documentation: banned phrases, and how easy it is to read.

The ease of a page is Flesch's: 100 is very easy, 60 is plain English, and 30 is hard.
Libraries that compute it load a dictionary of pronunciations at run time, so syllables
are counted by rules here.
"""

from __future__ import annotations

import re
from typing import Final

BANNED: Final = re.compile(
    r"\b(very many|so many|as (?:it|they) (?:is|are|was|were)\b|of its(?=[.,;:)])|"
    r"(?:is|are|was|were) to (?!be\b)[a-z]+|whoever|nobody|somebody|anybody|anew|"
    r"meanwhile|beneath|for ever\b|(?:go|goes|gone|went) on\b|belongs? into|"
    r"by chance|(?:is|are|be|being|been) told|tells? (?:of|what|how|whether)|"
    r"(?:says?|said) (?:of|what|how|whether|so|which|that)|"
    r"(?:looks?|looked) (?:at|for)|in (?:its|the) place of|to be had|"
    r"without a word|stands? for|does not know of|kin)\b",
    re.IGNORECASE,
)
"""Phrases that a native speaker would not write in documentation."""
EASE: Final = 70.0
"""The lowest reading ease of a page: short words in short sentences."""
LONGEST: Final = 45
"""The most words of a sentence."""

_CODE_BLOCK: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE: Final = re.compile(r"`[^`]*`")
_IMAGE: Final = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END: Final = re.compile(
    r"(?<=[.!?:;])[*\"')]*\s+|\n\s*\n|\n(?=\s*(?:[-*:]|\d+\.)\s)"
)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_VOWELS: Final = re.compile(r"[aeiouy]+")
_SILENT: Final = re.compile(
    r"(?<=[^aeiouyl])e$|(?<=[aeiouy]l)e$|(?<=[^aeiouydt])ed$|(?<=[^aeiousxzhcg])es$"
)


def visible_text(page: str) -> str:
    """Return the text of a Markdown page without code, comments, images and
    targets of links.

    Code between backquotes becomes one short word.
    """
    text = _COMMENT.sub("", _CODE_BLOCK.sub("\n", page))
    text = _IMAGE.sub("", text)
    return _LINK.sub(r"\1", _CODE.sub("code", text))


def sentences_of(page: str) -> list[str]:
    """Return the sentences and items of lists of a page, without headings and
    tables.
    """
    lines = [
        line
        for line in visible_text(page).splitlines()
        if not line.startswith(("|", "#", "    "))
    ]
    parts = _SENTENCE_END.split("\n".join(lines))
    return [" ".join(part.split()) for part in parts if _WORD.search(part)]


def banned_phrases(page: str) -> list[str]:
    """Return the banned phrases of a page, in tables too."""
    return [match[0] for match in BANNED.finditer(visible_text(page))]


def long_sentences(page: str) -> list[str]:
    """Return the sentences of a page with more than `LONGEST` words."""
    return [
        sentence
        for sentence in sentences_of(page)
        if len(_WORD.findall(sentence)) > LONGEST
    ]


def syllables(word: str) -> int:
    """Return the number of syllables of a word: its groups of vowels, without a
    silent e.
    """
    letters = word.lower().removesuffix("'s")
    if len(letters) > 3:
        letters = _SILENT.sub("", letters)
    return max(1, len(_VOWELS.findall(letters)))


def reading_ease(page: str) -> float:
    """Return the Flesch reading ease of a page; without prose it is 100."""
    sentences = sentences_of(page)
    words = _WORD.findall(" ".join(sentences))
    if not words:
        return 100.0
    length = len(words) / len(sentences)
    return 206.835 - 1.015 * length - 84.6 * sum(map(syllables, words)) / len(words)

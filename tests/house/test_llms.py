"""The documentation for language models is made from the pages, and up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowpregel.cli.pages import Page
from tests.house import llms

SKILL = llms.DOCS / "SKILL.md"


@pytest.mark.parametrize("name", ["llms.txt", "llms-full.txt"])
def test_the_text_for_language_models_is_that_of_the_pages(name: str) -> None:
    """After a change of pages, run `python -m tests.house.llms`."""
    is_current = (llms.DOCS / name).read_text("utf-8") == llms.texts()[name]

    assert is_current, f"docs/{name} is old: run python -m tests.house.llms"


def test_llms_txt_has_the_form_that_programs_expect() -> None:
    """A title, a summary, a text without headings, and lists of links below headings,
    of which the last may be skipped.
    """
    title, summary, *rest = llms.texts()["llms.txt"].split("\n\n")
    text = "\n\n".join(rest)
    introduction, *sections = re.split(r"^## ", text, flags=re.MULTILINE)

    assert title == "# flowpregel"
    assert re.fullmatch(r"> .+", summary)
    assert "#" not in introduction
    for section in sections:
        _, _, entries = section.partition("\n\n")
        for line in entries.strip().splitlines():
            assert re.fullmatch(r"- \[[^\]]+\]\([\w./-]+\.md\)(: .+)?", line)
    assert sections[-1].startswith("Optional\n\n- [Benchmark goals]")
    assert "[A pipeline with sends](examples/pipeline.md): as many tasks" in text


def test_llms_full_txt_leaves_out_what_users_do_not_need() -> None:
    """It is read in one piece."""
    text = llms.texts()["llms-full.txt"]
    names = re.findall(r"^Page: (\S+) ", text, re.MULTILINE)

    assert {"index.md", "SKILL.md", "how-to/retry.md", "reference/api.md"} <= {*names}
    assert [] == [name for name in names if "decisions/" in name]
    assert "changelog.md" not in names
    assert [] == re.findall(r"^:::.*", text, re.MULTILINE)


def test_a_page_is_taken_without_comments_and_pictures(tmp_path: Path) -> None:
    """Its links are those of a reader who has all pages in one folder."""
    file = tmp_path / "b.md"
    file.write_text(
        "---\nname: x\n---\n\n# B\n\n<!-- needs: c -->\n\n"
        "[d](d.md) [e](../e/f.md#g) [h](https://example.org/h.md) ![i](../j.svg)\n"
    )

    assert (
        "# B\n\n[d](a/d.md) [e](e/f.md#g) [h](https://example.org/h.md) (Figure: i)\n"
    ) == llms.plain_text(Page("a/b", "B", (), file))


def test_the_skill_file_has_a_name_a_description_and_one_screen_of_text() -> None:
    """An agent reads the description of each skill, and the rest if it fits."""
    front_matter = re.match(
        r"---\nname: flowpregel\ndescription: (.+)\n---\n", SKILL.read_text("utf-8")
    )

    assert front_matter is not None
    assert len(front_matter[1]) <= 1_024
    assert len(SKILL.read_text("utf-8").splitlines()) <= 200


def test_all_code_of_the_skill_file_is_run() -> None:
    """Each block is Python, which the test of the pages executes."""
    fences = re.findall(r"^```(.*)$", SKILL.read_text("utf-8"), re.MULTILINE)

    assert 10 <= len(fences)
    assert {"python", ""} == {*fences}
    assert ["python", ""] * (len(fences) // 2) == fences

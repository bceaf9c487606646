"""The pages of a built site as Markdown, for programs that read no HTML.

`python -m tests.site.markdown FOLDER` writes each page into the built site, under the
path that `llms.txt` has for it. The pages of the API get their entries.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flowpregel.cli.api_pages import is_api_page, with_entries
from flowpregel.cli.pages import read_pages

DOCS = Path(__file__).parents[2] / "docs"


def write_pages(site: Path) -> None:
    """Write all pages into the folder of a built site."""
    for page in read_pages(DOCS):
        text = with_entries(page.text) if is_api_page(page) else page.text
        target = site / f"{page.name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

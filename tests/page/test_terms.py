"""The search field of the calls has its terms beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowpregel.watching import CallQuery
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import served
from tests.page.stores import plain_store

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]


def test_a_press_on_a_term_adds_it_to_the_search(tab: Tab, tmp_path: Path) -> None:
    """And the calls are searched at once."""
    with served(plain_store(tmp_path / "store")) as server:
        open_run(tab, server, "divides")
        rows = "document.querySelectorAll('.rows .row').length"
        before = tab.until(rows)
        # The card of errors moves what is below it.
        tab.until("document.querySelector('.kinds li')")
        tab.hold(".terms summary")
        tab.hold(".terms dl > div:nth-child(3) button")
        tab.until(f"{rows} === 2")
        tab.hold(".terms dl > div:nth-child(4) button")
        tab.until(f"{rows} === 0")
        search = tab.run("document.querySelector('.bar input').value")
        terms = tab.run(
            "[...document.querySelectorAll('.terms dt')].map(term => term.textContent)"
        )

    assert before > 2
    assert "state:failed task:train" == search
    assert 10 == len(terms)
    CallQuery(text=" ".join(terms))

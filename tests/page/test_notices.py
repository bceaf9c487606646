"""A button asks the browser for a notification when a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page.browser import NEEDS_CHROMIUM, Tab
from tests.page.serving import served
from tests.page.stores import steady

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]

BUTTON = "document.querySelector('#notify')"
RECORDER = """window.notices = []; window.Notification = class {{
    static requestPermission = async () => '{permission}';
    constructor(title, {{ body }}) {{ window.notices.push([title, body]); }}
}}"""


def test_the_end_of_a_run_is_told_while_another_view_is_open(
    tab: Tab, tmp_path: Path
) -> None:
    with steady(tmp_path) as store, served(store) as server:
        tab.open(server.address)
        tab.until("document.querySelector('tbody .badge.running')")
        tab.run(RECORDER.format(permission="granted"))
        looks = "performance.getEntriesByType('resource').filter(({ name }) =>"
        asked = f"{looks} name.includes('state=running')).length"
        tab.hold("#notify")
        tab.until(f"{BUTTON}.getAttribute('aria-pressed') === 'true'")
        tab.until(f"{asked} > 1")
        assert [] == tab.run("window.notices")
        (tmp_path / "stop").touch()

        tab.until("window.notices.length === 1")
        assert [["steady", "Done."]] == tab.run("window.notices")


def test_a_browser_that_allows_no_notifications_is_told(
    tab: Tab, tmp_path: Path
) -> None:
    with steady(tmp_path) as store, served(store) as server:
        tab.open(server.address)
        tab.until(f"!{BUTTON}.hidden")
        tab.run(RECORDER.format(permission="denied"))
        tab.hold("#notify")

        tab.until(f"{BUTTON}.textContent === 'Notifications are not allowed'")
        assert "false" == tab.run(f"{BUTTON}.getAttribute('aria-pressed')")

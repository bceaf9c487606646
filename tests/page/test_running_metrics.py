"""The metrics of a call that goes on, in its panel and in the plot, in Chromium."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel._inspection.inert import InertCodec
from flowpregel.watching import StoreReader
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import served
from tests.page.stores import steady
from tests.runs.watched import until

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
DRAWN = "Number(document.querySelector('.plot').dataset.drawn)"
LINES = "document.querySelector('.plot').dataset.lines"


def test_a_metric_of_a_running_call_is_drawn_and_goes_on(
    tab: Tab, tmp_path: Path
) -> None:
    """In its panel and as a line beside those of other calls. It was drawn only once
    the call had ended. The news do not have its points.
    """
    with (
        steady(tmp_path, "training") as store,
        served(store) as server,
        LMDBSaver(store, readonly=True, codec=InertCodec()) as saver,
        closing(StoreReader(saver)) as reader,
    ):
        call = until(lambda: _running_train(reader))
        open_run(tab, server, "training")
        tab.until("document.querySelector('.pool')")  # it knows the running calls
        tab.run(f"location.hash += '?call={call}'")
        label = "document.querySelector('.panel .series svg')?.ariaLabel"
        tab.until(f"{label}?.startsWith('loss: ')")
        first = tab.run(label)
        tab.until(f"{label} !== {first!r}")
        reads = tab.run("document.querySelector('.panel h3').textContent")
        tab.hold(".panel [data-metric=loss] a")
        tab.until(f"{LINES} === '1' && {DRAWN} > 2")
        drawn = tab.run(DRAWN)
        tab.until(f"{DRAWN} !== {drawn}")
        _check_that_a_zoom_stays(tab)
        tab.run("history.back()")
        tab.until("document.querySelector('.panel .series')")
        (tmp_path / "stop").touch()
        tab.until("document.querySelector('.panel .badge.done')")
        tab.until("!document.querySelector('.panel').innerText.includes('so far')")
        tab.until("document.querySelector('.panel .series')")

    assert "Metrics so far" == reads


def _check_that_a_zoom_stays(tab: Tab) -> None:
    """Enlarge a part of a plot, and wait until the plot is drawn with more points."""
    link = "document.querySelector('a.point')"
    place = f"Math.round({link}.offsetLeft)"
    tab.run(f"{link}.focus()")
    tab.press("Home")  # the first point, which the mouse would change
    whole = tab.run(place)
    over = "document.querySelector('.plot .u-over').getBoundingClientRect()"
    x, y = tab.run(f"[{over}.x + {over}.width / 2, {over}.y + 10]")
    for kind, by, buttons in (
        ("mousePressed", 0, 1),
        ("mouseMoved", 90, 1),
        ("mouseReleased", 90, 0),
        ("mouseMoved", -y, 0),  # to where no point of the plot is
    ):
        mouse = {"button": "left", "clickCount": 1, "buttons": buttons}
        tab.send("Input.dispatchMouseEvent", type=kind, x=x + by, y=y + by, **mouse)
    tab.press("Home")
    tab.until(f"{place} !== {whole}")
    zoomed = tab.run(place)
    drawn = tab.run(DRAWN)
    tab.until(f"{DRAWN} !== {drawn}")
    assert zoomed == tab.run(place)


def _running_train(reader: StoreReader) -> str | None:
    """Return the id of the call of `train` once its series is published."""
    activity = reader.live("training")
    for call in () if activity is None else activity["running"]:
        if call["name"] == "train" and reader.series.running(activity, call["id"]):
            return str(call["id"])
    return None

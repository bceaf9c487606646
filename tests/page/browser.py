"""Drives a real browser: headless Chromium, by its DevTools protocol over a
websocket.

A browser can end, and a page of it can crash, while a command waits for its answer.
Both are events: the websocket closes, or the session of the page gets
``targetCrashed``. A browser that is silent is asked for its version from time to time.
Each of them raises a `BrowserLostError` at once, and the next test gets another page or
browser.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.page.serving import Served

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed"
)
PICTURES = os.environ.get("FLOWPREGEL_PICTURES")
"""Where the pictures of the docs are written."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--no-first-run",
    "--disable-features=IsolateSandboxedIframes",
    "--mute-audio",
    # A page whose window is behind another one is drawn, and its timers are not late.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--remote-debugging-port=0",
)
_NETWORK = "ERR_NETWORK_CHANGED"
_PATIENCE = 120.0
"""Seconds until something is taken to have failed: a busy machine is no failure."""


_SILENCE = 10.0
"""Seconds of silence after which the browser is asked for its version."""
_MOST_QUESTIONS = 6
"""The number of such questions without an answer: a busy machine is no failure."""


class BrowserLostError(Exception):
    """The browser or the page has ended, or does not answer."""


def attempts(purpose: str) -> Iterator[None]:
    """Yield until it has lasted too long.

    Raises:
        AssertionError: It has; the message says what was waited for.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        yield
    raise AssertionError(f"waited for {purpose} in vain")


class Link:
    """The websocket of a browser.

    Args:
        connection: The websocket.
        diary: The last lines that the browser has written to stderr.
    """

    def __init__(self, connection: ClientConnection, diary: deque[str]) -> None:
        self._connection = connection
        self._diary = diary
        self._questions = count(1_000_000_000)
        self.numbers = count(1_000)
        """The numbers of the commands of all pages: a late answer is no other's."""
        self.is_lost = False
        """True if the browser has ended, or does not answer."""

    def send(self, command: dict[str, Any]) -> None:
        """Send a command."""
        try:
            self._connection.send(json.dumps(command))
        except ConnectionClosed as error:
            raise self._lost("has ended") from error

    def receive(self, command: str) -> dict[str, Any]:
        """Return the next answer or event.

        Args:
            command: The name of the command that waits for its answer.
        """
        asked: set[int] = set()
        waited = 0.0
        while True:
            try:
                told = json.loads(self._connection.recv(timeout=_SILENCE))
            except TimeoutError:
                waited += _SILENCE
                if len(asked) == _MOST_QUESTIONS:
                    raise self._lost("does not answer") from None
                if waited > _PATIENCE:
                    raise BrowserLostError(
                        f"the page does not answer {command}"
                    ) from None
                number = next(self._questions)
                asked.add(number)
                self.send({"id": number, "method": "Browser.getVersion"})
            except ConnectionClosed as error:
                raise self._lost("has ended") from error
            else:
                if told.get("id") not in asked:
                    return dict(told)
                asked.clear()

    def _lost(self, reason: str) -> BrowserLostError:
        self.is_lost = True
        lines = "".join(self._diary)
        return BrowserLostError(f"the browser {reason}; it has written:\n{lines}")


class Tab:
    """A page in the browser.

    Args:
        link: The browser's websocket.
        session: Names the page there.
        target: Names the page when it is closed.
        context: Names the profile that the page's cookies and files are kept in.
    """

    def __init__(
        self,
        link: Link,
        session: str,
        target: str = "",
        context: str | None = None,
    ) -> None:
        self._link = link
        self._session = session
        self._target = target
        self._context = context
        self._numbers = link.numbers
        self._is_aborted = False
        self._is_crashed = False
        self._address = ""
        self.messages: list[str] = []
        """What the page has written to its console, errors and violations of its policy
        too.
        """

    def begin(self, method: str, **params: Any) -> int:
        """Send a command of the protocol, and return the number of its answer."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        self._link.send(command)
        return number

    def send(self, method: str, **params: Any) -> Any:
        """Send a command of the protocol, and return its result."""
        number = self.begin(method, **params)
        while not self._is_crashed:
            try:
                told = self._link.receive(method)
            except BrowserLostError:
                self._is_crashed = True
                raise
            if told.get("id") == number:
                assert "error" not in told, told["error"]
                return told["result"]
            self._note(told)
        raise BrowserLostError("the page has crashed")

    @property
    def is_lost(self) -> bool:
        """True if the page or its browser has ended, or does not answer."""
        return self._is_crashed or self._link.is_lost

    def become(self, other: Tab) -> None:
        """Be another page from now on."""
        vars(self).update(vars(other))

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(str(params["exceptionDetails"]))
            case "Log.entryAdded":
                text = str(params["entry"]["text"])
                # An interface that comes or goes aborts all requests, local ones too.
                self._is_aborted |= _NETWORK in text
                if "net::ERR_" not in text:  # such as when the server has ended
                    self.messages.append(text)
            case "Page.frameNavigated":
                frame = params["frame"]
                if told.get("sessionId") == self._session and "parentId" not in frame:
                    self._address = frame["url"]
            case "Inspector.targetCrashed":
                self._is_crashed |= told.get("sessionId") == self._session
            case "Page.javascriptDialogOpening":
                self.messages.append(f"a dialog: {params['message']}")
                # The page would answer nothing until the dialog is closed.
                other = Tab(self._link, told["sessionId"])
                other.begin("Page.handleJavaScriptDialog", accept=True)

    def open(self, address: str) -> None:
        """Go to an address, and wait until its page is loaded."""
        self._is_aborted = True
        while self._is_aborted:
            self._is_aborted = _NETWORK in self.send("Page.navigate", url=address).get(
                "errorText", ""
            )
            self.until("document.readyState === 'complete'")

    def leave(self) -> None:
        """Go from a page to an empty one.

        The page itself goes there, which keeps the process that draws it: a browser
        that is sent there starts another one, and the next page a third one.
        """
        self._go("location.replace('about:blank')", "about:blank")

    def reload(self) -> None:
        """Load the page again, and wait until it is loaded."""
        self._go("location.reload()", self.run("location.href.split('#')[0]"))
        self.until("document.readyState === 'complete'")

    def _go(self, call: str, address: str) -> None:
        """Call a method of the page that loads another document, and wait until that
        document is there: before, what is asked is answered by the old one.

        Args:
            call: The call, in JavaScript.
            address: The address of the document, without its fragment.
        """
        self._address = ""
        self.run(f"setTimeout(() => {call})")
        for _ in attempts(f"{call} to lead to {address}"):
            if self._address == address:
                break
            if self._is_crashed:
                raise BrowserLostError("the page has crashed")
            self._note(self._link.receive(call))

    def run(self, expression: str) -> Any:
        """Return what an expression of JavaScript, or its promise, comes to."""
        told = self.send(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until an expression is true, and return its value."""
        return self.run(
            f"""new Promise((done, fail) => {{
                const begin = Date.now();
                const look = () => {{
                    let found;
                    try {{ found = {condition}; }} catch (error) {{ found = false; }}
                    if (found) done(found);
                    else if (Date.now() - begin < {_PATIENCE * 1000})
                        setTimeout(look, 20);
                    else fail(new Error(
                        {json.dumps(condition)} + ": " + document.body.innerText
                    ));
                }};
                look();
            }})"""
        )

    def another(self) -> Tab:
        """Open another page with the same cookies and files."""
        start = Tab(self._link, "")
        # Of the tabs of one window, only one is visible.
        words: dict[str, Any] = {"url": "about:blank", "newWindow": True}
        if self._context is not None:
            words["browserContextId"] = self._context
        target = start.send("Target.createTarget", **words)["targetId"]
        session = start.send("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self._link, session["sessionId"], target, self._context)
        # What one page writes may arrive while another waits for its answer.
        tab.messages = self.messages
        for domain in ("Inspector", "Page", "Runtime", "Log"):
            tab.send(f"{domain}.enable")
        tab.look()
        return tab

    def close(self) -> None:
        """Close the page."""
        Tab(self._link, "").send("Target.closeTarget", targetId=self._target)

    def close_profile(self) -> None:
        """Close all pages of the profile, unless the browser is lost.

        Chromium sometimes gives no answer, so none is waited for.
        """
        with suppress(BrowserLostError):
            Tab(self._link, "").begin(
                "Target.disposeBrowserContext", browserContextId=self._context
            )

    def hold(self, selector: str, seconds: float = 0.12) -> None:
        """Press the mouse on an element for as long as a person does."""
        with self.held(selector):
            self.run(f"new Promise(done => setTimeout(done, {seconds * 1000}))")

    @contextmanager
    def held(self, selector: str) -> Iterator[None]:
        """Press the mouse on an element, and let go at the end of the block.

        News can move the element between the look at it and the press. A person who
        sees that lets go elsewhere, and tries again.
        """
        for _ in attempts(f"{selector} to stay where it is"):
            place = self._aim(selector)
            self._mouse("mousePressed", place)
            if not self.run("!window.wasPressed && window.hasMoved()"):
                break
            self._mouse("mouseMoved", (0, 0))
            self._mouse("mouseReleased", (0, 0))
        yield
        self._mouse("mouseReleased", place)

    def _aim(self, selector: str) -> tuple[float, float]:
        """Move the mouse to where an element is, and return the place."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        x, y = self.run(
            f"""(() => {{
                const found = document.querySelector({json.dumps(selector)});
                found.scrollIntoView({{ block: "nearest" }});
                const {{ x, y, width, height }} = found.getBoundingClientRect();
                window.wasPressed = false;
                window.hasMoved = () => {{
                    const now = found.getBoundingClientRect();
                    return !found.isConnected || now.x !== x || now.y !== y;
                }};
                addEventListener("mousedown", event => {{
                    window.wasPressed = found.contains(event.target);
                }}, {{ capture: true, once: true }});
                return [x + width / 2, y + height / 2];
            }})()"""
        )
        self._mouse("mouseMoved", (x, y))
        return x, y

    def _mouse(self, kind: str, place: tuple[float, float]) -> None:
        x, y = place
        words: dict[str, Any] = {}
        if kind != "mouseMoved":
            words = {"button": "left", "clickCount": 1}
        if kind == "mousePressed":
            words["buttons"] = 1
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **words)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "+": 187, "-": 189}
        arrows = ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown")
        codes |= {name: 37 + number for number, name in enumerate(arrows)}
        text = {"text": "\r"} if key == "Enter" else {}
        told = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.send("Input.dispatchKeyEvent", type="keyDown", **told, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def look(
        self,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        zoom: int = 1,
    ) -> None:
        """Set the size of the window, how much the page is enlarged, and whether the
        person likes dark pages.
        """
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width // zoom,
            height=height // zoom,
            deviceScaleFactor=zoom,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        # Two frames later what was changed is drawn.
        self.run(
            "new Promise(done => requestAnimationFrame(() => "
            "requestAnimationFrame(done)))"
        )
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


class Browser:
    """A browser that runs.

    Args:
        link: Its websocket.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def is_lost(self) -> bool:
        """True if the browser has ended, or does not answer."""
        if not self._link.is_lost:
            with suppress(BrowserLostError):
                Tab(self._link, "").send("Browser.getVersion")
        return self._link.is_lost

    @property
    def process_id(self) -> int:
        """The id of the process that all pages depend on."""
        told = Tab(self._link, "").send("SystemInfo.getProcessInfo")
        (process,) = (each for each in told["processInfo"] if each["type"] == "browser")
        return int(process["id"])

    def new_profile(self) -> Tab:
        """Return a page that shares no cookies, files or messages with earlier ones."""
        start = Tab(self._link, "")
        context = start.send("Target.createBrowserContext")["browserContextId"]
        return Tab(self._link, "", context=context).another()

    @contextmanager
    def profile(self) -> Iterator[Tab]:
        """Give a page as `new_profile` does, and close it."""
        page = self.new_profile()
        try:
            yield page
        finally:
            page.close_profile()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose files are in *folder*, and end it."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            diary: deque[str] = deque(maxlen=50)
            address: Future[str] = Future()
            reader = threading.Thread(
                target=_read_stderr, args=(process, address, diary)
            )
            reader.start()
            found = address.result(timeout=_PATIENCE)
            with connect(found, max_size=None, proxy=None) as connection:
                yield Browser(Link(connection, diary))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            reader.join()


def _read_stderr(
    process: subprocess.Popen[str], address: Future[str], diary: deque[str]
) -> None:
    """Read all that a browser writes to stderr, so that it never waits for a reader."""
    assert process.stderr is not None
    for line in process.stderr:
        diary.append(line)
        if "listening on " in line and not address.done():
            address.set_result(line.partition("listening on ")[2].strip())
    if not address.done():
        lines = "".join(diary)
        address.set_exception(BrowserLostError(f"the browser has not begun:\n{lines}"))


def open_run(tab: Tab, server: Served, thread: str, view: str = "calls") -> None:
    """Open a view of a run, and wait for it."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    tab.run(f"location.hash = '#/run/{quote(thread, safe='')}/{view}'")
    tab.until("document.querySelector('.head .badge')")


def keep_picture(tab: Tab, folder: Path, name: str) -> None:
    """Take a picture for the docs, of which each is under 150 kB."""
    place = (Path(PICTURES) if PICTURES else folder) / f"page-{name}.png"
    tab.run("document.querySelector('#store').textContent = 'runs.lmdb'")
    tab.picture(place)
    assert place.stat().st_size < 150_000

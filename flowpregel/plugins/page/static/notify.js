// Notifications of the browser when a run ends, also while the tab is hidden. A button asks for them.

import { patch, say } from "./dom.js";
import { load } from "./source.js";

const LOOK = 2000;
const OFFER = "Tell me when a run ends";

export function offerNotices() {
  const button = document.getElementById("notify");
  let timer = 0;
  let running = new Set(); // the runs that were running at the last look

  async function look() {
    try {
      const { runs } = await load("runs", { state: "running" });
      const now = new Set(runs.map((run) => run.thread_id));
      for (const thread of running) if (!now.has(thread) && !(await tell(thread))) now.add(thread);
      running = now;
    } catch {
      // The banner says that the server cannot be reached. The next look may find it again.
    }
  }

  // Tell of a run, unless it is still running: the list has only the first of many runs.
  async function tell(thread) {
    const { status, text } = await load("run", { thread });
    if (status === "running") return false;
    const notice = new Notification(thread, { body: text?.sentence ?? status, tag: thread });
    notice.onclick = () => { window.focus(); location.hash = `#/run/${encodeURIComponent(thread)}`; };
    return true;
  }

  async function toggle() {
    if (timer) {
      clearInterval(timer);
      timer = 0;
    } else if (await Notification.requestPermission() === "granted") {
      running = new Set();
      timer = setInterval(look, LOOK);
      look();
    } else {
      say("The browser does not allow notifications");
      patch(button, "Notifications are not allowed");
      return;
    }
    button.setAttribute("aria-pressed", String(timer !== 0));
    patch(button, timer ? "Tells you when a run ends" : OFFER);
  }

  // A page of another machine without TLS has no notifications.
  button.hidden = !("Notification" in window);
  button.addEventListener("click", toggle);
}

"""The search of the documentation site finds what readers type.

The search shows a section if the section has all words, each as the beginning of a word
of its text, its title, or the titles of its page. `tests/site` tries some of these
searches in a browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from flowpregel.cli.pages import read_pages
from tests.house.test_site import DOCS

TITLES = {f"{page.name}.md": page.title for page in read_pages(DOCS)}
HEADING = re.compile(r"^(?=#{1,3} )", re.MULTILINE)
TAG = re.compile(r"<!--.*?-->|\]\([^)]*\)", re.DOTALL)
WORD = re.compile(r"[\w']+")

SLURM = "how-to/time-limits-and-slurm.md"
LIMITS = "how-to/resources-and-rate-limits.md"
CODE = "how-to/change-code-while-a-run-is-unfinished.md"
CRON = "how-to/run-nightly-jobs.md"
PROGRESS = "how-to/progress-bars.md"
PANDAS = "how-to/use-pandas-polars-sql.md"
LANGGRAPH = "how-to/move-from-langgraph.md"
ARRAYS = "how-to/pass-big-arrays.md"
LOOP = "tutorial/from-a-loop-to-all-cores.md"
FASTAPI = "how-to/serve-from-fastapi.md"
ERROR_CODES = "reference/error-codes.md"
METHODS = "explanation/the-loop-method-by-method.md"
PREVIEWS = "how-to/see-arguments-and-results.md"
SEARCHES = [
    ("metrics of a sweep", PREVIEWS),
    ("redact api_key", PREVIEWS),
    ("for loop all cores", LOOP),
    ("parallel for loop", LOOP),
    ("parameter sweep", LOOP),
    ("fan out", "tutorial/2-parallel-tasks.md"),
    ("dependencies between tasks", "tutorial/2-parallel-tasks.md"),
    ("dag", "tutorial/2-parallel-tasks.md"),
    ("entrypoint takes no input", "faq.md"),
    ("continue after crash", "faq.md"),
    ("stop after four hours on slurm", "faq.md"),
    ("slurm wall time", SLURM),
    ("sigusr1", SLURM),
    ("preempted", SLURM),
    ("rate limit of 60 a minute", "faq.md"),
    ("rate limit 60 per minute", "faq.md"),
    ("requests per minute", LIMITS),
    ("throttle", LIMITS),
    ("semaphore", LIMITS),
    ("concurrency limit", LIMITS),
    ("crawler", LIMITS),
    ("retry with exponential backoff", "how-to/retry.md"),
    ("backoff", "how-to/retry.md"),
    ("change the number of workers of a running program", "how-to/size-the-pool.md"),
    ("out of memory", "how-to/out-of-memory.md"),
    ("oom killer", "how-to/out-of-memory.md"),
    ("resume after i renamed the function", "faq.md"),
    ("renamed function", CODE),
    ("moved to another module", CODE),
    ("refactoring", CODE),
    ("task hangs", "how-to/time-out-and-cancel.md"),
    ("cpu-bound timeout", "how-to/time-out-and-cancel.md"),
    ("stuck", "faq.md"),
    ("human in the loop", "how-to/interrupt.md"),
    ("human in the loop", "tutorial/4-ask-a-person.md"),
    ("approval", "how-to/interrupt.md"),
    ("job queue", "how-to/queue-runs.md"),
    ("enqueue priority", "how-to/queue-runs.md"),
    ("pause a run", "how-to/queue-runs.md"),
    ("schedule a workflow", "how-to/schedule-runs.md"),
    ("every hour", "how-to/schedule-runs.md"),
    ("nightly cron", CRON),
    ("prevent overlapping runs", CRON),
    ("run twice at once", "faq.md"),
    ("message when failed", "how-to/notifications.md"),
    ("alert", "how-to/notifications.md"),
    ("email", "how-to/notifications.md"),
    ("slack", "how-to/notifications.md"),
    ("on_failure", "how-to/notifications.md"),
    ("monitor", PROGRESS),
    ("why run waiting", PROGRESS),
    ("pandas dataframe results", PANDAS),
    ("export results", PANDAS),
    ("background job", FASTAPI),
    ("http endpoint", FASTAPI),
    ("migrate from langgraph", LANGGRAPH),
    ("run langgraph program unchanged", LANGGRAPH),
    ("langgraph import hook", LANGGRAPH),
    ("langgraph sqlite checkpointer", LANGGRAPH),
    ("SqliteSaver", LANGGRAPH),
    ("PregelLoop", METHODS),
    ("apply_writes", METHODS),
    ("_put_checkpoint", METHODS),
    ("prepare_next_tasks", METHODS),
    ("GRAPH_RECURSION_LIMIT", ERROR_CODES),
    ("INVALID_CONCURRENT_GRAPH_UPDATE", ERROR_CODES),
    ("can receive only one value per step", ERROR_CODES),
    ("multiple pending interrupts", ERROR_CODES),
    ("no checkpointer set", ERROR_CODES),
    ("time travel", "how-to/look-at-history.md"),
    ("cache across runs", "how-to/cache.md"),
    ("memoize", "how-to/cache.md"),
    ("large array without copying", ARRAYS),
    ("share array all workers", ARRAYS),
]


def sections(page: str) -> Iterator[set[str]]:
    """Yield the words of each section of a page, with those of the page's titles."""
    text = TAG.sub("", (DOCS / page).read_text("utf-8"))
    titles = f"{TITLES[page]} {text.splitlines()[0]}"
    for section in HEADING.split(text):
        yield set(WORD.findall(f"{titles} {section}".lower()))


@pytest.mark.parametrize(("query", "page"), SEARCHES)
def test_a_section_has_all_words_of_a_search(query: str, page: str) -> None:
    """A reader finds the answer under the words of the question."""
    words = WORD.findall(query.lower())

    assert any(
        all(any(word.startswith(part) for word in section) for part in words)
        for section in sections(page)
    )

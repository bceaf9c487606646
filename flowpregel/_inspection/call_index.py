"""The calls of a run in memory, so that a page of them costs little.

::

    StoreReader.calls ── CallChanges ──► update ──┐
    StoreReader.live ─── running ──► set_running ─┤
                                                  ▼
        CallTable: number   0     1     2    ...   a call keeps its number
                   id       "9c"  "02"  "f1" ...   one sequence for each field
                   seconds  0.1   0.3   0.2  ...
        log:       0 1 2 1 1 7 ...                 the numbers of changed calls
                                                  │
        selection: the calls that match a query, ◄┘ updated from the log
                   in order
            page:  a part of the selection

An index reads each call once, and again only if it changes. A selection, too, is
updated by the calls that changed. An index uses some 500 bytes for a call.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, NamedTuple

from flowpregel._inspection.call_order import CallOrder
from flowpregel._inspection.call_query import (
    STATES,
    CallQuery,
    Term,
    parse_terms,
)
from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel._inspection.call_table import GONE, CallTable
from flowpregel.checkpoint.labels import INPUT

Selector = Callable[[int], Any]
"""A function that returns whether the call with a number is selected."""
_MOST_SELECTIONS: Final = 4
"""The greatest number of selections (the results of queries) that are kept, and updated
after a change. Any other selection is made again when it is requested.
"""
_MOST_LOGGED: Final = 200_000
"""The length of the log at which its first half is dropped. A selection that is older
than the remaining half is then made again, not updated.
"""


class CallPage(NamedTuple):
    """The calls on a page, and the number of calls on all pages."""

    epoch: int
    """A number that identifies this numbering of the calls. It changes if calls get
    different numbers.
    """
    version: int
    """The number of changes of the index so far."""
    total: int
    """The number of calls that match the query."""
    numbers: tuple[int, ...]
    """The numbers of the calls on the page, in order."""
    rows: dict[int, CallRow]
    """The calls on the page by number, without those that the caller has."""
    is_behind: bool
    """True if some calls have not been read yet."""


class _Selection:
    """The numbers of calls that match a query, in order, at a version of the index."""

    def __init__(self, order: CallOrder) -> None:
        self.order = order
        self.numbers = array("q")
        self.version = -1
        self.field_count = 0
        """The number of fields that the user's code had named when the selection was
        made. A new field may change the meaning of a term of the query.
        """

    def part(self, offset: int, count: int) -> list[int]:
        """Return the numbers of at most *count* calls of the selection, after the first
        *offset*.
        """
        return self.order.part(self.numbers, offset, count)


class CallIndex:
    """The calls of a run in memory.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint, task
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import CallQuery, StoreReader
        >>> @task(executor="inline")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def total(numbers: list[int]) -> int:
        ...         return sum(future.result() for future in double.map(numbers))
        ...     total.run([1, 2, 3], id="1")
        ...     reader = StoreReader(saver)
        ...     index = CallIndex()
        ...     for changes in reader.changes("1", index.mark):
        ...         index.update(changes)
        ...     page = index.page(CallQuery(text="call:double(2", count=10))
        ...     print(page.total, [row.text for row in page.rows.values()])
        ...     print(len(index.select(CallQuery(states={"done"}))))
        ...     call_id = page.rows[page.numbers[0]].id
        ...     print(index.position(CallQuery(text="double"), call_id) is None)
        ...     index.set_running([])  # the calls of ``StoreReader.live``
        ...     print(index.counts)
        ...     print(len(list(index.recorded_rows())))
        ...     reader.close()
        12
        1 ['double(2)']
        4
        False
        Counter({'done': 4})
        4
    """

    def __init__(self) -> None:
        self.mark: int = 0
        """The mark (a position among all changes of calls) after the last change that
        was added.
        """
        self.is_behind: bool = True
        """True if some calls have not been read yet."""
        self._reset(0)

    def _reset(self, epoch: int) -> None:
        """Remove all calls from the index."""
        self.epoch: int = epoch
        """A number that identifies the numbering of the calls. It changes if calls get
        different numbers.
        """
        self.table: CallTable = CallTable()
        """The rows of the calls."""
        self.counts: Counter[str] = Counter()
        """The number of calls in each state."""
        self.body_counts: Counter[str] = Counter()
        """The number of bodies and nodes (tasks that are not calls) in each state."""
        self._changed_at = array("q")
        """The version of the index at which each call last changed."""
        self._log = array("q")
        self._log_begin = 0
        self._running: dict[int, str] = {}
        """The state in the record of each running call, or `GONE` if it has no record,
        by the number of the call.
        """
        self._selections: dict[CallQuery, _Selection] = {}

    def restore(
        self,
        table: CallTable,
        *,
        counts: Counter[str],
        body_counts: Counter[str],
        mark: int,
        epoch: int,
    ) -> None:
        """Store the calls of another index in this index. None of these calls may be
        running.

        Args:
            table: The rows of the calls.
            counts: The number of calls in each state.
            body_counts: The number, in each state, of the tasks that are not calls
                (bodies and nodes).
            mark: The mark (a position among all changes of calls) after the last change
                that was added.
            epoch: The number that identifies the numbering of the calls.

        Example:
            >>> from collections import Counter
            >>> from flowpregel.watching import CallIndex
            >>> other = CallIndex()
            >>> index = CallIndex()
            >>> index.restore(
            ...     other.table,
            ...     counts=Counter(other.counts),
            ...     body_counts=Counter(other.body_counts),
            ...     mark=other.mark,
            ...     epoch=7,
            ... )
            >>> index.epoch, index.version
            (7, 0)
        """
        self._reset(epoch)
        self.mark = mark
        self.table = table
        self.counts = counts
        self.body_counts = body_counts
        self._changed_at = array("q", bytes(8 * len(table)))

    def restore_order(self, numbers: array[int]) -> None:
        """Store the usual order of all calls (`URGENCY`), so that it need not be
        computed. This is called after `restore`.

        Args:
            numbers: The numbers of the calls in this order, which `select` of the other
                index returned.

        Example:
            >>> from array import array
            >>> from flowpregel.watching import CallIndex, CallQuery
            >>> index = CallIndex()
            >>> index.restore_order(array("q"))
            >>> index.select(CallQuery())
            []
        """
        query = CallQuery(states=frozenset())
        order = CallOrder(self.table, query.order)
        selection = _Selection(order)
        selection.numbers = numbers
        selection.version = self.version
        selection.field_count = len(self.table.fields)
        self._selections[query] = selection

    @property
    def version(self) -> int:
        """The number of changes of the index so far."""
        return self._log_begin + len(self._log)

    # ------------------------------------------------------------ changes

    def update(self, changes: CallChanges) -> None:
        """Store the calls that changed.

        Args:
            changes: The changes that `StoreReader.calls` returned for the mark of this
                index.
        """
        if changes.is_whole:
            self._reset(changes.mark)
        self.mark = changes.mark
        self.is_behind = changes.is_more
        for row in changes.rows:
            number = self.table.number_of(row.id)
            if number in self._running:
                if row.state == "done":
                    del self._running[number]
                else:
                    self._running[number] = row.state
                    row = _with_state(row, "running")
            self._put(row)
        if len(self._log) > _MOST_LOGGED:
            dropped = len(self._log) // 2
            del self._log[:dropped]
            self._log_begin += dropped

    def set_running(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        """Store which calls are running now.

        Args:
            tasks: The ``running`` tasks of `StoreReader.live`.
        """
        paths: dict[str, str] = {}
        visible_tasks: list[Mapping[str, Any]] = []
        for task in tasks:
            if task["name"] == INPUT:
                continue
            task_id = task["id"]
            paths[task_id] = task["path"]
            visible_tasks.append(task)
        numbers: set[int] = set()
        for task in visible_tasks:
            number = self._mark_running(task, paths)
            numbers.add(number)
        ended = self._running.keys() - numbers
        for number in ended:
            recorded_state = self._running.pop(number)
            self._set_state(number, recorded_state)

    def _mark_running(
        self,
        task: Mapping[str, Any],
        paths: Mapping[str, str],
    ) -> int:
        """Store that a call is running, and return its number."""
        call_id = task["id"]
        number = self.table.number_of(call_id)
        if number is None:
            row = _running_row(task, paths)
            number = self._put(row)
            self._running[number] = GONE
            return number
        state = self.table.state(number)
        if number not in self._running and state != "done":
            self._running[number] = state
            self._set_state(number, "running")
        return number

    def _put(self, row: CallRow) -> int:
        """Store a call, and return its number."""
        known_number = self.table.number_of(row.id)
        if known_number is not None:
            self._uncount(known_number)
        number = self.table.put(row)
        if known_number is None:
            self._changed_at.append(0)
        self._count(number)
        return number

    def _set_state(
        self,
        number: int,
        state: str,
    ) -> None:
        self._uncount(number)
        self.table.set_state(number, state)
        self._count(number)

    def _count(self, number: int) -> None:
        """Add a call to the counts and to the log."""
        self._add_to_counts(number, 1)
        self._log.append(number)
        self._changed_at[number] = self.version

    def _uncount(self, number: int) -> None:
        self._add_to_counts(number, -1)

    def _add_to_counts(
        self,
        number: int,
        count: int,
    ) -> None:
        state = self.table.state(number)
        if state == GONE:
            return
        self.counts[state] += count
        if not self.table.columns["text"][number]:
            self.body_counts[state] += count

    # ------------------------------------------------------------ queries

    def recorded_rows(self) -> Iterator[CallRow]:
        """Yield the calls that have records. A call that is running has the state of
        the record.
        """
        for number in range(len(self.table)):
            row = self.table.row(number)
            state = self._running.get(number, row.state)
            if state != GONE:
                yield _with_state(row, state)

    def failed_numbers(self) -> list[int]:
        """Return the numbers of the calls whose last recorded attempt failed.

        Example:
            >>> from flowpregel.watching import CallIndex
            >>> CallIndex().failed_numbers()
            []
        """
        # A run may have a million calls. So the states are searched as bytes, which
        # needs no loop in Python over all calls.
        states = self.table.urgency.tobytes()
        code = STATES.index("failed")
        numbers: list[int] = []
        number = states.find(code)
        while number >= 0:
            numbers.append(number)
            number = states.find(code, number + 1)
        for number, state in self._running.items():
            if state == "failed":
                numbers.append(number)
        return numbers

    def page(
        self,
        query: CallQuery,
        *,
        since: int = 0,
        known: Iterable[int] = (),
    ) -> CallPage:
        """Return the calls on a page.

        Args:
            query: The query that selects and sorts the calls, and names the page.
            since: The version of the index when the caller received its rows.
            known: The numbers of the calls whose rows the caller has. Such a row is
                left out, unless the call has changed after the version *since*.
        """
        selection = self._selection(query)
        numbers = selection.part(query.offset, query.count)
        known = set(known)
        rows: dict[int, CallRow] = {}
        for number in numbers:
            changed_at = self._changed_at[number]
            if number not in known or changed_at > since:
                rows[number] = self.table.row(number)
        return CallPage(
            epoch=self.epoch,
            version=self.version,
            total=len(selection.numbers),
            numbers=tuple(numbers),
            rows=rows,
            is_behind=self.is_behind,
        )

    def position(
        self,
        query: CallQuery,
        call_id: str,
    ) -> int | None:
        """Return the position of a call among the calls that match a query, in the
        query's order.

        Args:
            query: The query. Its page (``offset`` and ``count``) has no effect.
            call_id: The id of the call.

        Returns:
            The position, or None if the call is unknown or does not match.
        """
        number = self.table.number_of(call_id)
        if number is None:
            return None
        selection = self._selection(query)
        return selection.order.position(selection.numbers, number)

    def select(self, query: CallQuery) -> Sequence[int]:
        """Return the numbers of all calls that match a query, in the query's order.

        Args:
            query: The query. Its page (``offset`` and ``count``) has no effect.
        """
        selection = self._selection(query)
        total = len(selection.numbers)
        return selection.part(0, total)

    def _selection(self, query: CallQuery) -> _Selection:
        """Return the selection of a query, updated."""
        states = frozenset(query.states)
        key = CallQuery(
            text=query.text,
            states=states,
            task=query.task,
            order=query.order,
        )
        selection = self._selections.pop(key, None)
        if selection is None:
            order = CallOrder(self.table, query.order)
            selection = _Selection(order)
        self._selections[key] = selection
        while len(self._selections) > _MOST_SELECTIONS:
            queries = iter(self._selections)
            oldest = next(queries)
            del self._selections[oldest]
        if selection.version != self.version:
            self._update_selection(selection, key)
        return selection

    def _update_selection(
        self,
        selection: _Selection,
        query: CallQuery,
    ) -> None:
        """Update a selection by the calls that changed since its version."""
        unchanged: list[int] = []
        changed: Collection[int] = range(len(self.table))
        field_count = len(self.table.fields)
        is_valid = selection.field_count == field_count
        if is_valid and selection.version >= self._log_begin:
            begin = selection.version - self._log_begin
            changed = set(self._log[begin:])
            unchanged = [
                number for number in selection.numbers if number not in changed
            ]
        for condition in self._conditions(query):
            matches = filter(condition, changed)
            changed = list(matches)
        numbers = selection.order.merge(
            unchanged,
            list(changed),
        )
        selection.numbers = array("q", numbers)
        selection.version = self.version
        selection.field_count = field_count

    def _conditions(self, query: CallQuery) -> list[Selector]:
        """Return functions that are true for the calls that match a query."""
        urgency = self.table.urgency
        states = query.states or STATES
        codes: set[int] = set()
        for state in states:
            code = STATES.index(state)
            codes.add(code)
        conditions: list[Selector] = []
        conditions.append(lambda number: urgency[number] in codes)
        if query.task:
            task_term = Term(
                value=query.task.lower(),
                field="task",
                comparison="=",
            )
            conditions.append(self._condition(task_term))
        terms = parse_terms(query.text, self.table.fields)
        conditions += map(self._condition, terms)
        return conditions

    def _condition(self, term: Term) -> Selector:
        """Return a function that is true for the calls that match a term."""
        value_of = self.table.value_of(term.field)
        return lambda number: term.matches(value_of(number))


def _with_state(row: CallRow, state: Any) -> CallRow:
    return row._replace(state=state)


def _running_row(task: Mapping[str, Any], paths: Mapping[str, str]) -> CallRow:
    """Return the row of a running call that has no records yet.

    Args:
        task: The task, as `StoreReader.live` returns it.
        paths: The paths of the running tasks (the positions in the superstep) by id.
    """
    state: Any = "running"
    return CallRow(
        id=task["id"],
        name=task["name"],
        text=task["text"],
        state=state,
        step=-1,
        checkpoint_id="",
        namespace="",
        path=task["path"],
        caller=paths.get(task["caller"], ""),
        error="",
        questions=0,
        planned=task["planned"],
        began=task["began"],
        seconds=0.0,
        attempts=task["attempt"],
        executor="",
        host="",
        pid=task["pid"],
    )

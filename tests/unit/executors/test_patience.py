"""Who waits looks for a moment before it sleeps, and only where that has paid."""

from __future__ import annotations

from flowpregel.executors.processes.patience import CROWDED, SHORT, SPELL, STREAK, Patience


class Clock:
    """A clock that goes on by itself, so much each time it is read."""

    def __init__(self, step: int) -> None:
        self.now = 1
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def impatient() -> None:
    """Find nothing."""


def after_short_waits(clock: Clock) -> Patience:
    """Return what has waited shortly several times."""
    patience = Patience(clock)
    for _ in range(STREAK):
        patience.waited(SHORT)
    return patience


def test_nobody_looks_before_some_waits_were_short() -> None:
    """The first waits sleep at once."""
    patience = Patience(Clock(1_000))
    for _ in range(STREAK - 1):
        patience.waited(SHORT)

    assert patience.look(lambda: "there") is None


def test_what_comes_soon_is_found_by_looking() -> None:
    """After a few short waits, what is looked for is found without sleeping."""
    patience = after_short_waits(Clock(1_000))
    answers = iter([None] * 20 + ["there"])

    assert patience.look(lambda: next(answers)) == "there"


def test_one_long_wait_ends_the_looking() -> None:
    """A task that takes long, or an idle pool, is waited for asleep."""
    patience = after_short_waits(Clock(1_000))
    patience.waited(SHORT + 1)

    assert patience.look(lambda: "there") is None


def test_a_look_ends_when_its_spell_is_over() -> None:
    """Nobody looks for longer than that."""
    clock = Clock(1_000)
    patience = after_short_waits(clock)
    began = clock.now

    assert patience.look(impatient) is None
    assert clock.now - began <= SPELL + 3_000


def test_nobody_looks_for_a_while_where_others_want_the_cpu() -> None:
    """Looks that take long, since others have run meanwhile, end the looking for a while."""
    clock = Clock(2 * CROWDED)
    patience = after_short_waits(clock)
    looks = 0
    while patience.look(lambda: "there") is not None:
        looks += 1
        assert looks < 10_000
    clock.now += 10**9

    assert patience.look(lambda: "there") == "there"


def test_a_crowd_now_and_then_does_not_end_the_looking() -> None:
    """As many looks without a crowd make up for those with one."""
    clock = Clock(0)
    patience = after_short_waits(clock)
    for turn in range(2_000):
        clock.step = 2 * CROWDED * (turn % 2)
        assert patience.look(lambda: "there") == "there"

"""An approval workflow: it asks people, waits for days if it must, and goes on.

    python examples/approval.py submit trip 1800
    python examples/approval.py pending trip
    python examples/approval.py answer trip yes

Each command is a process of its own; between them nothing runs. A claim of more
than 1,000 needs two people, who are asked at the same time and may answer in any
order. The money is paid once, however often the program is stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, TypedDict

from flowpregel.func import entrypoint, task
from flowpregel.pregel import Pregel
from flowpregel.types import Command, interrupt


class Claim(TypedDict):
    """What somebody wants to be paid."""

    purpose: str
    amount: int


@task
def check(claim: Claim) -> list[str]:
    """Return who has to agree: a rule that may change while a claim waits, so it is
    recorded.
    """
    if claim["amount"] <= 0:
        raise ValueError(f"{claim['amount']} is no amount to claim")
    return ["manager"] if claim["amount"] <= 1_000 else ["manager", "finance"]


@task(executor="threads")
def ask(person: str, claim: Claim) -> bool:
    """Ask a person; the run stops here until there is an answer."""
    answer = interrupt(
        {"who": person, "question": f"{claim['amount']} for {claim['purpose']}?"}
    )
    return str(answer).lower() in ("yes", "y")


@task
def pay(claim: Claim) -> str:
    """Pay, and return the receipt."""
    return f"paid {claim['amount']} for {claim['purpose']}"


def approval(store: Any) -> Pregel:
    """Return the workflow, kept in the folder *store*."""

    @entrypoint(checkpointer=store)
    def reimburse(claim: Claim) -> str:
        people = check(claim).result()
        answers = [
            future.result() for future in [ask(person, claim) for person in people]
        ]
        if not all(answers):
            refused = [
                who for who, agreed in zip(people, answers, strict=True) if not agreed
            ]
            return f"refused by {' and '.join(refused)}"
        return pay(claim).result()

    return reimburse


def shown(result: Any) -> str:
    """Return the outcome of a run as text: its end, or who is asked what."""
    if not isinstance(result, dict):
        return str(result)
    return "\n".join(
        f"waits for {json.dumps(asked.value)}" for asked in result["__interrupt__"]
    )


def answer(flow: Pregel, claim: str, word: str, who: str | None) -> Any:
    """Answer the open questions of a claim: those for *who*, or all."""
    asked = flow.get_state(thread_id=claim).interrupts
    answers = {item.id: word for item in asked if who in (None, item.value["who"])}
    if not answers:
        raise SystemExit(f"nobody is asked about {claim!r}")
    return flow.invoke(Command(resume=answers), thread_id=claim)


def main(arguments: list[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    parser = argparse.ArgumentParser(description="Claims and approvals.")
    parser.add_argument(
        "--store", default="claims.lmdb", help="folder to keep claims in"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("submit", ["claim", "amount"]),
        ("pending", ["claim"]),
        ("answer", ["claim", "word"]),
    ):
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word, type=int if word == "amount" else str)
        if name == "answer":
            command.add_argument(
                "--who", help="whose answer it is (default: everybody's)"
            )
    asked = parser.parse_args(arguments)
    flow = approval(asked.store)
    if asked.command == "submit":
        claim: Claim = {"purpose": asked.claim, "amount": asked.amount}
        print(shown(flow.invoke(claim, thread_id=asked.claim, run_id=asked.claim)))
    elif asked.command == "answer":
        print(shown(answer(flow, asked.claim, asked.word, asked.who)))
    else:
        for item in flow.get_state(thread_id=asked.claim).interrupts:
            print(json.dumps(item.value))
    return 0


if __name__ == "__main__":
    sys.exit(main())

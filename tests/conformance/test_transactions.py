"""Every case of the transaction store, sent to a daemon as messages by the adapter next to this file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.reach import NEAREST, UNREACHED
from conformance.transactions_subject import Subject
from conformance.words import Op

# The cases of which nobody can ask a daemon, by what in them is out of reach.
OUT_OF_REACH = {
    "spend-009": "spend at height 0",
    "prune-005": "prune at height 0",
    "unspend-005": "unspend, frozen",
    "lock-016": "lockRelease",
    "persist-006": "notify, minedSet false",
    "spend-022": "spend, other inputs",
    "chain-002": "markLongestChain, age",
}
CASES: list[Op] = json.loads((Path(__file__).parent / "transactions.json").read_text())


@pytest.fixture
def subject() -> Iterator[Subject]:
    subject = Subject()
    yield subject
    subject.close()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: Op, subject: Subject) -> None:
    for op in case["given"]:
        subject.run(op)
    got = subject.run(case["when"])
    wants = case["then"].get("oneOf") or [case["then"]]
    differing = [list(differences(subject, want, got)) for want in wants]
    assert not all(differing), differing[0]
    out_of_reach = [name for name in subject.case.nearest if name in UNREACHED]
    assert out_of_reach == [name for each, name in OUT_OF_REACH.items() if each == case["id"]]


def differences(subject: Subject, want: Op, got: Op) -> Iterator[str]:
    """Yield what a case wants otherwise than it is."""
    for name, fields in (want.get("state") or {}).items():
        state = subject.state(name)
        if not isinstance(fields, dict) or state is None:  # the lock's owner is a word
            if state != fields:
                yield f"{name} is {state}, not {fields}"
        else:
            yield from differs(fields, state, f"{name}.")
    yield from differs({key: value for key, value in want.items() if key not in ("state", "oneOf")}, got, "")


def differs(want: Op, got: Op, where: str) -> Iterator[str]:
    for key, value in want.items():
        name = key.removesuffix("OneOf").removesuffix("Include")
        found: Any = got.get(name)
        if key == "note":
            continue
        if key.endswith("OneOf"):
            right = found in value
        elif key.endswith("Include"):
            right = set(value) <= set(found or ())
        else:
            right = found == value
        if not right:
            yield f"{where}{name} is {found!r}, not {value!r}"


@pytest.mark.parametrize("want", [{"result": "error"}, {"state": {"A": None}}, {"state": {"A": {"spentUtxos": 9}}}])
def test_a_wrong_answer_is_seen(want: Op, subject: Subject) -> None:
    got = subject.run({"op": "create", "tx": "A", "outs": 1, "height": 1})
    assert list(differences(subject, want, got))


def test_every_reason_is_given_somewhere() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("*.py")]
    given = {name for source in sources for name in re.findall(r'self\.(?:case\.)?near\("(.+?)"\)', source)}
    assert given == NEAREST.keys() | UNREACHED.keys()

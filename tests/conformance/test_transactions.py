"""Every case of the transaction store, told to the real one by the adapter beside this file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.transactions_subject import Op, Subject

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
        if key == "note" or (isinstance(value, str) and value.startswith("any ")):
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

"""The reference of messages: the file is what the types say, and its examples are what a daemon says and accepts."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemons import PATIENCE_S, ROOT, Client, Message, running
from test_tidy import MODULES, tree

from daemon import reference
from daemon.examples import ANSWERS, SEQUENCE
from handlers import wire
from handlers.events import Error, Inbound, Pruned, Welcome
from handlers.refusal import CODES

FILE = ROOT / "docs" / "messages.md"
REFUSING = {"Refused", "Refusal", "TxFault", "Fault"}
OF_TIME = {"version", "store_id", "seconds_since_last_block", "feeder_away_s", "newest_sequence"}


def test_the_file_is_generated_from_the_types() -> None:
    assert FILE.read_text() == reference.page(), "python -m daemon.reference > docs/messages.md"


def sections() -> dict[str, str]:
    """Return the text below each heading of the file."""
    parts = re.split(r"^#+ (.*)$", FILE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", [kind.__name__ for kind in Inbound.__args__])
def test_both_encodings_of_an_example_are_the_same_message(name: str) -> None:
    line, frame = re.findall(r"```(?:json|text)\n(.*?)```", sections()[name], re.DOTALL)
    raw = bytes.fromhex(frame.replace("\n", ""))
    length = int.from_bytes(raw[:4], "big")
    assert length == len(raw) - 4
    assert wire.decode(raw[4:], "frames") == wire.decode(line.encode(), "json")
    assert json.loads(line)["type"] == name


def test_links_lead_somewhere() -> None:
    headings = {name.lower() for name in sections()}
    assert set(re.findall(r"\]\(#(.*?)\)", FILE.read_text())) <= headings
    for path in re.findall(r"\]\(([^#)]+)\)", FILE.read_text()):
        assert (FILE.parent / path).exists(), path


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_a_daemon_accepts_the_examples(tmp_path: Path, encoding: wire.Encoding) -> None:
    """All but the last message, which shows an error; and the answers and facts among the examples are its own."""
    chain = {"family": "cardano", "network": "preview"}
    with running(tmp_path, chain=chain) as daemon, daemon.client(encoding) as client:
        noticed = [
            answer for message in SEQUENCE for answer in until(client, wire.encode(message, encoding), message.seq)
        ]
        facts = [plain(example) for example in ANSWERS if not isinstance(example, Welcome | Pruned)]
        while not all(is_there(fact, noticed) for fact in facts):  # they may come behind the answer to the next message
            noticed.append(received(client))
        welcome = client.hello()
    answers = [answer for answer in noticed if "seq" in answer]
    assert [answer["seq"] for answer in answers] == [message.seq for message in SEQUENCE]
    assert [answer["type"] for answer in answers] == ["Welcome", *["Ack"] * (len(SEQUENCE) - 2), "Error"]
    for example in ANSWERS:
        shown = plain(example)
        if isinstance(example, Welcome):
            assert welcome.keys() == shown.keys()
            assert without(welcome, *OF_TIME) == without(shown, *OF_TIME)


def is_there(shown: Message, noticed: list[Message]) -> bool:
    """Return whether something was heard, whatever its sequence: the pruner may tell of its work before."""
    return any(without(answer, "sequence") == without(shown, "sequence") for answer in noticed)


def until(client: Client, raw: bytes, seq: int | None) -> Iterator[Message]:
    """Send a message and yield all that is heard until its answer."""
    client.raw(raw)
    while True:
        noticed = received(client)
        yield noticed
        if noticed.get("seq") == seq:
            return


def received(client: Client) -> Message:
    noticed = client.receive(PATIENCE_S)
    assert noticed is not None
    return noticed


def plain(message: Any) -> Message:
    answer: Message = msgspec.json.decode(wire.encode(message, "json"))
    return answer


def without(message: Message, *names: str) -> Message:
    return {name: value for name, value in message.items() if name not in names}


def refusal_codes(parsed: ast.Module) -> set[str]:
    """Return the codes with which a module of the socket's side says no."""
    calls = [node for node in ast.walk(parsed) if isinstance(node, ast.Call)]
    given = [
        call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in REFUSING and call.args
    ]
    chosen = [each for code in given for each in ((code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,))]
    return {code.value for code in chosen if isinstance(code, ast.Constant)}  # type: ignore[misc]


def test_every_code_has_a_meaning() -> None:
    served = [name for name in MODULES if name.startswith(("handlers", "daemon"))]
    rooms = [name for name in served if "http" not in name and "gateway" not in name]  # those refuse with a status
    found = {code for name in rooms for code in refusal_codes(tree(MODULES[name]))}
    assert len(found) > 20
    assert found <= CODES.keys()
    assert CODES.keys() - found <= {"gap", "fork", "UTXO_ERROR"}, "nobody says these"
    assert all(Error(seq=None, code=code, message="").code in FILE.read_text() for code in CODES)

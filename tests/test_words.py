"""Words that this project has retired are in no name, comment, docstring, message or document."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tidy import ROOT, files

# What they were used for is called: listener, package, queue, subscribers, metrics file, wakeup, setting, renderer.
RETIRED = (
    *("anew", "audience", "bell", "bells", "births", "desk", "door", "doors", "ear", "ears", "hall", "house", "houses"),
    *("keeper", "knob", "knobs", "mountains", "scribe", "sheaf", "sheet", "sheets", "teller", "turnstile"),
    *("beside", "somebody", "unearth", "whoever"),
    *("taken back", "takes back", "take back", "took back", "for ever", "keep house", "keeps house"),
)
# Not in comments, docstrings, messages and documents of the program either: the field has an ordinary word for each.
UNPLAIN = (
    *("anybody", "everybody", "nobody", "stranger", "strangers", "stray", "strays", "story", "stories"),
    *("said", "saying", "told", "tells", "heard", "hear", "hears", "rings", "rung", "room", "rooms"),
    *("asks", "asked", "dies", "died", "for good", "in vain", "let go", "go on", "goes on", "give way", "gives way"),
    *("begin again", "begins again", "sync again", "so many", "so much"),
    *("may live again", "one behind the other", "does not say so", "there should be"),
    *("look after", "look at", "look into", "looked at", "looked into", "looks", "handed", "hands", "speaks of"),
)
# Neither in names of variables, functions and classes, also of tests: what they hold or do has a name.
NAMES = {"anybody", "asked", "everybody", "nobody", "said", "saying", "somebody", "told", "untold"}
KINDS = {".py", ".md", ".toml", ".html", ".js", ".service", ".socket"}
_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(RETIRED)})(?![a-z])".replace(" ", r"\s+"))
# A name of the protocol, such as `heard_at`, is one word; `looks up` is what a reader of an index does.
_UNPLAIN = re.compile(rf"(?<![a-z_])(?:{'|'.join(UNPLAIN)})(?![a-z_])(?![\s-]*up\b)".replace(" ", r"\s+"))
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


def texts(path: Path) -> Iterator[str]:
    """Yield the text of a file in lower case: a program by tokens, its names split into words."""
    text = path.read_text()
    if path.suffix != ".py":
        yield re.sub(r"\s+", " ", text).lower()
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield " ".join(_PARTS.split(token.string)).lower()
        elif token.type in {tokenize.STRING, tokenize.COMMENT}:
            yield token.string.lower()


def prose(path: Path) -> Iterator[str]:
    """Yield the text of a file of the program without its names, and without quotations from the code."""
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        text = "\n".join(token.string for token in tokens if token.type in {tokenize.STRING, tokenize.COMMENT})
    yield re.sub(r"`[^`\n]*`|\{[^{}\n]*\}", "", text).lower()


def names(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield from _PARTS.sub(" ", token.string).lower().split()


def retired(path: Path) -> list[str]:
    found = {word for text in texts(path) for word in _WORD.findall(text)}
    if path.suffix == ".py":
        found |= NAMES.intersection(names(path))
    if not path.is_relative_to(ROOT / "tests") and path.suffix in {".py", ".md", ".toml", ".service", ".socket"}:
        found |= {word for text in prose(path) for word in _UNPLAIN.findall(text)}
    return sorted(re.sub(r"\s+", " ", word) for word in found)


def checked() -> list[Path]:
    return [path for path in files() if path.suffix in KINDS and path != Path(__file__)]


def test_no_file_has_a_retired_word() -> None:
    found = {str(path.relative_to(ROOT)): words for path in checked() if (words := retired(path))}
    assert found == {}, "say it in plain words"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def open_door(): pass", ["door"]),
        ("x = 1  # the block is taken back", ["taken back"]),
        ('"""The block is taken\n    back."""', ["taken back"]),
        ("class DoorKeeper: pass", ["door", "keeper"]),
        ("def what_was_said(): pass", ["said"]),
        ("households = outdoors = 'indoors'", []),
        ("told = 1  # nobody has told it of `room`", ["nobody", "told"]),
        ("x = 'heard_at' if looked_up else 'recovery_told_late'  # looked up, a look-up", []),
    ],
)
def test_the_rule_sees_a_retired_word(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    assert retired(path) == words

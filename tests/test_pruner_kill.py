"""kill -9 in every phase of a cycle, before and after each commit: the next cycle ends where one alone would have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from chains import LEAVES, at, block, dump, output, tx, txid
from daemons import environment
from pruning import LocalStore, open_local_store, pay, run_through, terms_of

from handlers import new_records, states
from handlers.events import Pruned
from handlers.prune_cycle import PHASES
from handlers.prune_request import Request
from handlers.transactions import TxView
from storage.disk import Txn
from storage.history.verify import verify
from storage.windows import Windows

_T = TypeVar("_T")
TERMS = terms_of(3, chunk_size=2)
HEIGHT = 30
FUNDS = 600  # outputs that are spent: the nodes over them fill two values
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from test_pruner_kill import die_everywhere
die_everywhere(Path(sys.argv[1]))
"""


def prepare(folder: Path) -> None:
    with open_kill_store(folder) as local:
        chain = [block(None, tx("funds", *[output("a", n) for n in range(FUNDS)]))]
        chain.append(block(chain[-1], tx("all", output("b"), spends=[at("funds", n) for n in range(FUNDS)])))
        for _ in range(HEIGHT - 2):
            chain.append(block(chain[-1]))
        local.chain.may_prune = False
        for each in chain:
            local.chain.apply(each, None)
        local.chain.commit()
        for n in range(4):
            local.create(pay(f"old {n}", outs=2), 1, mined=1)
            local.create(pay(f"waits {n}", at(f"old {n}")), 2)
            local.create(pay(f"kept {n}"), 1, mined=1)
            local.create(pay(f"child of kept {n}", at(f"kept {n}")), 2, mined=2)
            local.write(partial(lambda view, name: states.preserve(view, name, 20), name=txid(f"kept {n}")))
            local.create(pay(f"parent {n}", outs=2), 1, mined=1)
            local.create(pay(f"child {n}", at(f"parent {n}")), 2, mined=2)
            local.create(pay(f"grandchild {n}", at(f"child {n}")), 3, mined=3)
        local.write(partial(make_large, local=local))
        local.transactions.blobs.put(f"{txid('large').hex()}.tx", b"bytes")


def make_large(view: TxView, local: LocalStore) -> None:
    large, view.height = pay("large", at("elsewhere"), outs=7), 3
    record = new_records.draft(local.transactions.rules, large, 1, at=1)
    for number in range(record.pages + 1):
        new_records.put_page(view, large, record, number)
    states.set_conflicting(view, large.txid, on=True)


open_kill_store = partial(open_local_store, terms=TERMS, windows=Windows(5, 5), page=2, kind="mmr")


def cycle(local: LocalStore, hear: Callable[[str], None]) -> None:
    made = local.pruner.cycle(Request(HEIGHT, "applied"), None)
    run_through(made, lambda: hear(made.job.phase or "end"))
    local.pruner.finish(made)
    hear("tables")
    local.prune_tables()


def die_everywhere(template: Path) -> None:
    """Kill one child after the other, each at another write of the cycle; return the phase of each."""
    for after_commit in (False, True):
        number = 0
        while True:
            folder = template.with_name(f"dead {number} {after_commit}")
            shutil.copytree(template, folder)
            sys.stdout.flush()
            if (child := os.fork()) == 0:
                die(folder, number, after_commit)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                shutil.rmtree(folder)
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            number += 1


def die(folder: Path, number: int, after_commit: bool) -> None:
    phase, writes = "begin", 0
    with open_kill_store(folder) as local:
        write = local.disk.write

        def last(folder: Path) -> None:
            print(phase, folder.name, sep="\t", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        def dying(work: Callable[[Txn], _T]) -> _T:
            nonlocal writes
            writes += 1
            if writes - 1 != number:
                return write(work)
            if after_commit:
                write(work)
                last(folder)

            def cut(txn: Txn) -> _T:
                done = work(txn)
                last(folder)
                return done

            return write(cut)

        local.disk.write = dying  # type: ignore[method-assign]

        def hear(now: str) -> None:
            nonlocal phase
            phase = now

        cycle(local, hear)


def answers(local: LocalStore) -> dict[str, Any]:
    """Return every answer of the chain, and every other row but those that say when something was done."""
    kept = dump(local.utxo)
    return {name: answer for name, answer in kept.items() if not name.startswith(("pruner_job", "change_log"))}


def test_kill_in_every_phase(tmp_path: Path) -> None:
    template = tmp_path / "template"
    prepare(template)
    shutil.copytree(template, tmp_path / "alone")
    with open_kill_store(tmp_path / "alone") as local:
        cycle(local, lambda _: None)
        expected, blobs = answers(local), list(local.transactions.blobs.names())
        facts = [fact for committed in local.published for fact in committed.facts]
        assert local.journal()[0].counts["transactions_deleted"] == 5
        assert sum(fact.mmr_nodes for fact in facts if isinstance(fact, Pruned)) == 1012  # of two values of 509
        assert blobs == []
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(template)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(PYTHONPATH="."),
        check=False,
    )
    assert child.returncode == 0, child.stderr
    deaths = [line.split("\t") for line in child.stdout.splitlines() if "\t" in line]
    assert {phase for phase, _ in deaths} == {*PHASES, "end", "tables"} - {"blobs"}, (
        "orphans are swept without a commit"
    )
    assert len(deaths) > 25
    for phase, name in deaths:
        with open_kill_store(tmp_path / name) as local:
            local.pruner.begin()
            states = [job.state for job in local.journal()]
            assert states in ([], ["failed"], ["done"]), "one that was cut is not done"
            assert (states == ["done"]) == (phase == "tables" or (phase == "end" and name.endswith("True")))
            cycle(local, lambda _: None)
            assert answers(local) == expected, f"killed in {phase}, {name}"
            assert verify(local.disk, leaves=LEAVES) == []
            assert list(local.transactions.blobs.names()) == []

"""Opening: whose store it is, in which format, who holds it; and reading it from another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from chains import TABLES, at, back_to, block, dump, everything, feed, found, genesis, live, open_chain, output, tx

import storage.disk
from storage.disk import FORMAT_KEY, META, MIB, Disk
from storage.errors import Damaged, StoreBusy, StoreError, WrongFormat
from storage.history.layout import FORMAT
from storage.history.output_keys import address_key
from storage.history.store import HistoryStore
from storage.indexes import NAMES

ANN = output("ann").address


@contextmanager
def child(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run code in a process that prints `ready` and ends when its input does."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(storage.disk.__file__).parents[1])])
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


# --- format, kind, chain, indexes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [1, FORMAT + 1])
def test_another_format_is_refused(tmp_path: Path, written: int) -> None:
    """The store is refused before a table is made or the file changes."""
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, tx("O", output("ann"))))
        chain.store.disk.write(lambda txn: txn.put(FORMAT_KEY, written.to_bytes(4, "big"), db=chain.store.meta))
    before = (tmp_path / "data.mdb").read_bytes()
    why = f"written in format {written}, this version reads format {FORMAT}: feed the chain again into another data_dir"
    for _ in range(2):
        with pytest.raises(WrongFormat, match=why):
            Disk(tmp_path, (*TABLES, "one_more"), version=FORMAT)
        assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_new_store_has_the_format_of_this_version(tmp_path: Path) -> None:
    with Disk(tmp_path, TABLES, version=FORMAT):
        pass
    with open_chain(tmp_path) as chain:
        feed(chain, block(None))
        before = everything(chain.store)
    with Disk(tmp_path, TABLES, version=FORMAT) as disk:
        assert everything(HistoryStore(disk)) == before


def test_a_store_that_was_never_run_has_no_format(tmp_path: Path) -> None:
    with Disk(tmp_path, TABLES, version=FORMAT) as disk, pytest.raises(WrongFormat, match="has no format"):
        HistoryStore(disk).check_chain("cardano/mainnet")


@pytest.mark.parametrize("kind", ["classic", "mmr"])
def test_another_kind_of_store_is_refused(tmp_path: Path, kind: str) -> None:
    with open_chain(tmp_path, store=kind) as chain:
        feed(chain, block(None, tx("O", output("ann"))))
        before = everything(chain.store)
    other = "mmr" if kind == "classic" else "classic"
    why = f'this is a {kind} store, the configuration says utxo.store = "{other}"'
    with pytest.raises(WrongFormat, match=why), open_chain(tmp_path, store=other):
        pass
    with open_chain(tmp_path, store=kind) as chain:
        assert everything(chain.store) == before


def test_another_chain_is_refused(tmp_path: Path) -> None:
    with open_chain(tmp_path, chain="cardano/preview"):
        pass
    why = "for cardano/preview, but the configuration is for cardano/mainnet"
    with pytest.raises(WrongFormat, match=why), open_chain(tmp_path, chain="cardano/mainnet"):
        pass
    with open_chain(tmp_path, chain="cardano/preview") as chain, chain.store.disk.read() as txn:
        assert chain.store.chain(txn) == "cardano/preview"


def test_an_index_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        feed(chain, block(None, tx("O", output("ann"))))
        before = dump(chain.store)
    wanted = ["address_hash", "payment_credential", "policy"]
    why = r"index payment_credential, policy was off .* `utxod reindex`"
    with pytest.raises(WrongFormat, match=why), open_chain(tmp_path, indexes=wanted):
        pass
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        assert dump(chain.store) == before
        assert found(chain.store, "address_hash", address_key(ANN)) == [at("O")]


def test_an_index_switched_off_is_dropped(tmp_path: Path) -> None:
    first = block(None, tx("O", output("ann")))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
    with open_chain(tmp_path, indexes=["policy", "address_hash"]) as chain:
        assert found(chain.store, "payment_credential", ANN[1:]) == []
        assert found(chain.store, "address_hash", address_key(ANN)) == [at("O")]
        feed(chain, block(first, tx("P", output("ann"))))
        with chain.store.disk.read() as txn:
            assert set(chain.store.kept_indexes(txn)) == {"policy", "address_hash"}
            stored = chain.store.stored(txn)
            assert [name for name in NAMES if stored.index(name).runs] == ["address_hash"], "no output has a policy"
    with pytest.raises(WrongFormat, match="payment_credential, stake_credential"), open_chain(tmp_path):
        pass


def test_a_store_without_indexes_keeps_the_set_all_the_same(tmp_path: Path) -> None:
    first = block(None, tx("O", output("ann")))
    with open_chain(tmp_path, indexes=[]) as chain:
        feed(chain, first, block(first, tx("P", output("bob"), spends=[at("O")])))
        assert list(live(chain.store)) == [at("P")]
        with chain.store.disk.read() as txn:
            assert not any(chain.store.stored(txn).index(name).runs for name in NAMES)


def test_a_store_continues_where_it_stopped(tmp_path: Path) -> None:
    first = block(None, tx("O", output("ann")))
    with open_chain(tmp_path) as chain:
        chain.seed(genesis(bob=1))
        feed(chain, first)
        view, before = chain.view, dump(chain.store)
    with open_chain(tmp_path) as chain:
        assert chain.view == view
        assert dump(chain.store) == before
        assert not chain.seed(genesis(bob=1))


# --- who holds it --------------------------------------------------------------------------------------------------

HOLDING = """
import sys
from pathlib import Path
from chains import open_chain
with open_chain(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "owner").write_text("123456789012345\n")  # of an earlier one, and longer
    with child(HOLDING, tmp_path) as process:
        with pytest.raises(StoreBusy, match=rf"pid {process.pid}\)"), open_chain(tmp_path):
            pass
        process.communicate()
        assert process.returncode == 0
    with open_chain(tmp_path):
        assert (tmp_path / "owner").read_text() == f"{os.getpid()}\n"
        with pytest.raises(StoreBusy, match=rf"pid {os.getpid()}\)"), open_chain(tmp_path):
            pass


def test_a_store_that_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"this is no store" * 1000)
    for _ in range(2):
        with pytest.raises(Damaged, match="not a store, or it is damaged"):
            Disk(tmp_path, TABLES)


# --- reading next to the writer -------------------------------------------------------------------------------------

READING = """
import sys
from pathlib import Path
import numpy as np
from chains import TABLES, output
from storage.disk import Disk
from storage.history.output_keys import address_key
from storage.history.store import HistoryStore

with Disk(Path(sys.argv[1]), TABLES, map_size=1 << 20, readonly=True) as disk:
    store, seen = HistoryStore(disk), -1
    store.check_chain("cardano/mainnet")
    print("ready", flush=True)
    while seen < int(sys.argv[2]):
        with disk.read() as txn:
            stored = store.stored(txn)
            state = stored.state
            live = np.flatnonzero(stored.live.has(np.arange(state.next_number)))
            assert len(live) == state.unspent == 300 * state.tip, state
            assert len(stored.bodies(live)) == len(stored.homes(live)) == state.unspent
            assert txn.stat(store.block)["entries"] == state.tip
            if state.tip:
                assert store.block_at(txn, state.tip).height == state.tip
                prefix = stored.prefix(address_key(output(f"{state.tip - 1} 399").address))
                (listed,) = [number for some in stored.index("address_hash").ascending(prefix) for number in some]
                assert stored.live.is_set(int(listed)) == (state.tip > 1)
        if state.tip > seen:
            seen = state.tip
            print(seen, flush=True)
    print(disk.map_size(), flush=True)
"""


def test_a_reader_in_another_process_sees_block_boundaries_and_survives_growth(tmp_path: Path) -> None:
    length, parent = 40, None
    with open_chain(tmp_path, map_size=MIB) as chain, child(READING, tmp_path, length) as process:
        assert process.stdout is not None
        for n in range(length):
            paid = [output(f"{n} {k}") for k in range(400)]
            spent = [at(f"t{n - 1}", k) for k in range(100)] if n else []
            spare = [at(f"t{n}", k) for k in range(300, 400)] if not n else []
            parent = block(parent, tx(f"t{n}", *paid, spends=spent), tx(f"u{n}", spends=spare))
            feed(chain, parent)
            if n % 8 == 7:  # let it see this one
                while int(process.stdout.readline()) < parent.height:
                    pass
        assert int(process.stdout.read().split()[-1]) > 4 * MIB, "it followed the map"
        assert process.wait(60) == 0


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None))
    with Disk(tmp_path, TABLES, readonly=True) as disk, pytest.raises(lmdb.ReadonlyError):
        disk.write(lambda txn: txn.put(b"a", b"b", db=disk.tables[META]))


def test_reading_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store here"):
        Disk(tmp_path / "nowhere", TABLES, readonly=True)
    assert not (tmp_path / "nowhere").exists()
    with Disk(tmp_path, TABLES[:3]):
        pass
    with pytest.raises(StoreError, match=r"the table .* is missing"):
        Disk(tmp_path, TABLES, readonly=True)


# --- the map -------------------------------------------------------------------------------------------------------


def test_growth_is_reported(tmp_path: Path) -> None:
    sizes: list[int] = []
    with Disk(tmp_path, TABLES, map_size=MIB, durable=False, on_grow=sizes.append) as disk:
        meta = disk.tables[META]
        assert disk.write(lambda txn: txn.put(b"key", bytes(3 * MIB), db=meta))
        assert sizes == [2 * MIB, 4 * MIB]
        assert disk.map_size() == 4 * MIB
        assert 3 * MIB < disk.used() <= 4 * MIB
        disk.write(lambda txn: txn.delete(b"key", db=meta))
        assert sizes == [2 * MIB, 4 * MIB, 8 * MIB], "ahead of need: three quarters were used"


def test_a_file_larger_than_the_configured_map_is_opened_whole(tmp_path: Path) -> None:
    with open_chain(tmp_path, map_size=MIB) as chain:
        first = block(None, tx("O", *[output(str(n), inline_datum=bytes(1000)) for n in range(2000)]))
        feed(chain, first)
        before = dump(chain.store)
    with open_chain(tmp_path, map_size=MIB) as chain:
        assert dump(chain.store) == before
        chain.rollback(back_to("origin"))
        assert chain.view.unspent == 0


def test_work_that_fails_is_not_committed(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        before = dump(chain.store)

        def work(txn: storage.disk.Txn) -> None:
            txn.put(b"state", b"nonsense", db=chain.store.meta)
            raise KeyError("state")

        with pytest.raises(KeyError):
            chain.store.disk.write(work)
        assert dump(chain.store) == before

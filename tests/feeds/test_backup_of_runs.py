"""Real blocks, a backup in their midst while further ones are applied, and the rest applied to what was restored."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cardano_runs import expected_rows, genesis_of, network_of
from chains import TABLES
from real_data import found, need
from test_runs_through_store import Figures, Reader, Stretch, Way, opened, stretches

from feeds.cardano.chunks import read_chain
from handlers.chain import Chain
from storage.backup import Writer, new_folder, write_backup
from storage.disk import Txn
from storage.history.verify import verify
from storage.manifest import VERSION, Manifest, Tip
from storage.restore import restore

RUNS = {"cardano/preview-genesis-100": 100, "cardano/preview-genesis-run": 3000}  # so many blocks are applied


def figures(row: dict[str, Any]) -> Figures:
    return Figures(row["utxo_count"], row["utxo_sum"], row["acc"], row["acc_addr"])


def about(chain: Chain, txn: Txn) -> Manifest:
    store, state = chain.store, chain.store.state(txn)
    block = store.block_at(txn, state.tip)
    return Manifest(
        utxod_backup=VERSION,
        version="tests",
        created_at="",
        format=store.format(txn),
        chain=store.chain(txn),
        kind=store.kind,
        indexes=store.kept_indexes(txn),
        tip=Tip(block.height, block.slot, block.hash.hex()),
        unspent=state.unspent,
        blob_store="file:blobs",
        recovery_store="sqlite",
        not_included=[],
        files=[],
    )


@pytest.mark.parametrize("kind", ["classic", "mmr"])
@pytest.mark.parametrize("run", found(RUNS))
def test_a_restored_store_goes_on_to_the_same_sets(
    run: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.page_copy._CHUNK", 64 << 10)
    way, genesis, count = Way(kind, 5, kind == "mmr"), genesis_of(run), RUNS[run]
    blocks = read_chain(need(run), network_of(run), genesis=genesis.outputs)
    pairs = list(islice(zip(blocks, expected_rows(run), strict=True), count))
    taken, rows = [block for block, _ in pairs], [row for _, row in pairs]
    whole: list[Stretch] = list(stretches(taken, rows, figures, way.at_once, set()))
    half = len(whole) // 2
    with opened(tmp_path / "source", "cardano", way) as chain:
        chain.seed(genesis)
        reader = Reader(chain)
        reader.begin()
        for stretch in whole[:half]:
            reader.see(stretch)
        rest: Iterator[Stretch] = iter(whole[half:])
        meanwhile = list[Stretch]()

        def tell(_: int) -> None:
            meanwhile.extend(islice(rest, 1))
            for stretch in meanwhile[-1:]:
                reader.see(stretch)

        with new_folder(tmp_path / "backup") as folder:
            saved = write_backup(
                chain.store.disk, None, None, Writer(folder, tell), lambda txn: about(chain, txn), None
            )
        assert saved.tip is not None and len(meanwhile) > 1
        assert saved.tip.hash == whole[half - 1][-1][0].hash.hex() != chain.view.tip.hash.hex()  # type: ignore[union-attr]
    restore(tmp_path / "backup", tmp_path / "restored", TABLES, walk=True)
    with opened(tmp_path / "restored", "cardano", way) as chain:
        reader = Reader(chain)
        reader.begin()
        assert reader.figures(whole[half - 1][-1][1]) == whole[half - 1][-1][1]
        for stretch in whole[half:]:
            reader.see(stretch)
        assert verify(chain.store.disk, leaves=chain.store.leaves) == []

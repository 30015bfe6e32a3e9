"""Blocks and ghosts: which transactions become ghosts in a rollback, and how later blocks affect them.

Those that a block has again are in the chain; those that it has anything else to do with get rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from handlers.transactions import TxView
from storage.history.arrays import first_places, ranges, same_rows
from storage.history.batch import Columns
from storage.history.layout import Flags, Numbers, outputs_in, words
from storage.history.mined import RolledBack
from storage.rows import TxFlag

LEAST = 500  # transactions of a rollback
GENERATIONS = 8


class Connected(NamedTuple):
    """What a block did to ghosts: `mined` are those that it has again, `given_rows` those that have rows now.

    `rivals` claimed what a transaction of the block spends, and no row reports it: the output has no claim any more.
    """

    mined: list[bytes] = []
    given_rows: list[bytes] = []
    rivals: dict[bytes, bytes] = {}


def connect(view: TxView, block: Columns) -> Connected:
    """Let a block that is in the chain end the ghosts that it has, or that it has anything else to do with."""
    ghosts, txn = view.ghosts, view.txn
    if not ghosts.any(txn):
        return Connected()
    view.flush()
    numbers = ghosts.find_many(txn, block.txids)
    same = _same(view, block, numbers)
    mined = [block.txids[at].tobytes() for at in np.flatnonzero(same).tolist()]
    if mined:
        ghosts.end(txn, numbers[same])
        view.forget_ghosts()
    given_rows = [block.txids[at].tobytes() for at in np.flatnonzero((numbers >= 0) & ~same).tolist()]
    spender = np.repeat(np.arange(len(block.txids)), block.inputs_of)
    places, spends = ghosts.claims_on(txn, block.previous, block.index)
    who = [record.tobytes() for record in view.ghosts.records(view.txn, spends["spender"])["id"]]
    by = [block.txids[at].tobytes() for at in spender[places].tolist()]
    claims = zip(who, by, places.tolist(), strict=True)
    rivals = {loser: (winner, at) for loser, winner, at in claims if loser != winner}
    left = np.flatnonzero(ghosts.find_many(txn, block.previous) >= 0)
    given_rows += [block.previous[at].tobytes() for at in left.tolist()]
    given_rows += rivals
    given_rows = [txid for txid in dict.fromkeys(given_rows) if view.touch(txid)]
    lost = {loser: winner for loser, (winner, at) in rivals.items() if not _stands(view, block, at)}
    return Connected(mined, given_rows, lost)


def _stands(view: TxView, block: Columns, at: int) -> bool:
    """Return whether a claim on what an input spends is in a row, where the rules of blocks find it."""
    parent = block.previous[at].tobytes()
    return view.pooled(parent) is not None or view.claimed(parent, int(block.index[at])) is not None


def make_room(view: TxView) -> None:
    """Create records for the ghosts of the smallest generations, to free space for another one."""
    while len(generations := view.ghosts.generations(view.txn)) >= GENERATIONS:
        smallest, left = min(generations, key=lambda each: each.left), list[bytes]()
        for records in view.ghosts.parts(view.txn, smallest):
            left += [each.tobytes() for each in records["id"][view.ghosts.live(view.txn, records["number"])]]
        for txid in left:
            view.touch(txid)


def new_ghosts(view: TxView, back: RolledBack) -> Flags:
    """Return which transactions of blocks that go back become ghosts: this is all that is kept of them.

    One that has rows, failed, or is a coinbase does not, nor one of several with one id, nor who spends from these or
    spends what was reassigned. Few are not worth a generation of their own: each one is examined by every look-up.
    """
    view.flush()
    ids = back.txs["id"]
    plain: Flags = back.txs["counts"] & (TxFlag.INVALID | TxFlag.COINBASE) == 0
    apart = back.reused if view.pool.bare(view.txn) else back.reused | view.pool.with_rows(view.txn, back.txids())
    if apart:
        some = np.flatnonzero(np.isin(ids[:, 0], words(b"".join(apart))[:, 0]))
        plain[[at for at in some.tolist() if ids[at].tobytes() in apart]] = False
    parents = back.reused | {txid for _, (txid, _) in view.pool.reassigned.rows(view.txn)}
    if parents:
        of_these = np.isin(back.parents[:, 0], words(b"".join(parents))[:, 0])
        plain &= ~np.isin(back.txs["number"], back.spends["spender"][of_these])
    plain &= ~np.isin(back.txs["number"], _losing(back))
    if plain.sum() < LEAST:
        plain[:] = False
    return plain


def _losing(back: RolledBack) -> list[int]:
    """Return the coinbases and failed transactions that go back, and what builds on them: all of it loses."""
    losing = set(back.txs["number"][back.txs["counts"] & (TxFlag.INVALID | TxFlag.COINBASE) != 0].tolist())
    homes = back.spends["number"] - back.indexes
    if np.isin(homes, list(losing)).any():
        for home, by in zip(homes.tolist(), back.spends["spender"].tolist(), strict=True):  # in the chain's order
            if home in losing:
                losing.add(by)
    return sorted(losing)


def _same(view: TxView, block: Columns, numbers: Numbers) -> Flags:
    """Return which transactions of a block are ghosts, spend and pay the same, and have no rows separately."""
    same: Flags = (numbers >= 0) & (block.flags & (TxFlag.INVALID | TxFlag.COINBASE) == 0)
    wanted, first = first_places(numbers[same])
    at = np.flatnonzero(same)[first]  # of several with one id the others are none
    same[:] = False
    if len(at) == 0:
        return same
    records = view.ghosts.records(view.txn, wanted)
    inputs, outputs = block.inputs_of[at], block.outputs_of[at]
    good = (records["spent"] == inputs) & (outputs_in(records["counts"]) == outputs)
    at, records, inputs, outputs = at[good], records.compress(good), inputs[good], outputs[good]
    own, spends = ranges(_starts(block.inputs_of)[at], inputs), view.ghosts.spends_of(view.txn, records)
    alike = same_rows(spends["parent"], block.previous.take(own, axis=0)) & (spends["index"] == block.index[own])
    good = _all_of(alike & (spends["input"] == ranges(np.zeros(len(at), np.int64), inputs)), inputs)
    own = ranges(_starts(block.outputs_of)[at], outputs)
    there, values = view.ghosts.values_of(view.txn, ranges(records["number"], outputs))
    good &= _all_of((there == block.spendable[own]) & (~there | (values == block.values[own])), outputs)
    if not view.pool.bare(view.txn):
        others = view.pool.with_rows(view.txn, [block.txids[n].tobytes() for n in at.tolist()])
        good &= np.array([block.txids[n].tobytes() not in others for n in at.tolist()], np.bool_)
    same[at[good]] = True
    return same


def _all_of(good: Flags, counts: Numbers) -> Flags:
    """Return of which groups all are good."""
    bad = np.concatenate(([0], np.cumsum(~good)))
    ends = np.cumsum(counts)
    flags: Flags = bad[ends] == bad[ends - counts]
    return flags


def _starts(counts: Numbers) -> Numbers:
    """Return where each of several groups begins, one after the other."""
    starts: Numbers = np.cumsum(counts) - counts
    return starts

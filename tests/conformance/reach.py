"""What of the cases' ops no message means, or not in their words, and why."""

# What nobody can ask of a daemon, and why; the answer that the cases want is given here.
UNREACHED = {
    "spend at height 0": "a submission spends at the height after the tip's, which is 1 at least",
    "prune at height 0": "the pruner and `utxod prune` begin with the first block",
    "unspend, frozen": "nobody spends what is frozen: there is nothing that could be withdrawn",
    "lockRelease": "who creates gives back its own lock, in its last step: that step alone is run",
    "notify, minedSet false": "a block comes with its transactions: there is none without them",
    "spend, other inputs": "an id stands for its inputs: the submission is withdrawn, and one with more of them sent",
    "markLongestChain, age": "what was submitted keeps its age; it begins anew when that is withdrawn and sent again",
}
# What no message means in these words, and which messages come nearest.
NEAREST = {
    "create, unfinished": "`store_full` is to be sent again; the cases tell pages that are missing from flags",
    "create, missing parent": "only a block may spend what is not there; it goes back, and its transaction waits",
    "create, createdAtMs": "the daemon's clock says it",
    "spend again": "a submission again changes nothing; the block that has it spends again, at its height",
    "spend, ignoring": "only a block may pass by locks and conflicts",
    "freeze, hash": "no message freezes by hash: whoever has one asks first, by a submission that can't succeed",
    "setMined, several": "a message is carried out for all of its transactions or none: each goes by itself",
    "markLongestChain": "a block's id is entered or removed: TxMined, with `longest` or `unset`",
    "incSpentExtra": "the store counts by itself: all outputs of a page are spent, or such a spender is withdrawn",
    "loadUnmined, bestBlocks": "which blocks are on the longest chain is told when they are: TxMined",
    "lockAcquire": "a large submission takes the lock; it stays when the process dies right after",
    "prune, one phase": "`utxod prune` runs whole cycles; phase 1 finds nothing when nothing is old enough for it",
    "counterConflicting": "WinnersDecided tells who gives way, and lets them",
    "conflictingChildren": "a walk along what `/txs` answers; TxConflicting and TxWithdrawn walk so by themselves",
    "lockChildren": "that walk, then TxLocked",
}

"""What of the cases' ops no message means, or not in their words, and why."""

# What nobody can ask of a daemon; the answer that the cases want is given by the adapter.
UNREACHED = {
    "spend at height 0": "no feature: a submission spends at the height after the tip's, which is 1 at least",
    "prune at height 0": "no feature: the pruner and `utxod prune` begin with the first block",
    "unspend, frozen": "no feature: nobody spends what is frozen, so there is nothing to withdraw",
    "lockRelease": "no feature: a creation gives back its own lock in its last step; that step is run alone",
    "notify, minedSet false": "no feature: a block comes with its transactions, there is none without them",
    "spend, other inputs": "no feature: an id stands for its inputs; it is withdrawn, and submitted with more of them",
    "markLongestChain, age": "no feature: what was submitted keeps its age, unless it is withdrawn and submitted again",
}
# What other messages come nearest to.
NEAREST = {
    "create, unfinished": "no feature: `store_full` says send it again, whatever is missing",
    "create, missing parent": "no feature: only a block may spend what is not there; here it goes back afterwards",
    "create, createdAtMs": "no feature: the daemon's clock says it, and is set",
    "spend again": "no feature: a submission again changes nothing; the block that has it spends again, at its height",
    "spend, ignoring": "no feature: only a block may pass by locks and conflicts",
    "freeze, hash": "missing: no message freezes by hash; a submission that can't succeed asks for the hash first",
    "setMined, several": "no feature: a message is carried out for all of its transactions or none; each goes alone",
    "markLongestChain": "no feature: the id of a block is entered or removed: TxMined, with `longest` or `unset`",
    "incSpentExtra": "no feature: the store counts; all outputs of a page are spent, or such a spender is withdrawn",
    "loadUnmined, bestBlocks": "no feature: which blocks are on the longest chain is told when they are: TxMined",
    "lockAcquire": "no feature: a large submission takes the lock; it stays when the process dies right after",
    "prune, one phase": "no feature: `utxod prune` runs whole cycles; phase 1 finds nothing if nothing is that old",
    "counterConflicting": "missing: no question asks who would give way; WinnersDecided tells who does",
    "conflictingChildren": "missing: no question asks for the whole family; it is walked along what `/txs` answers",
    "lockChildren": "no feature: TxLocked, with the ids that this walk finds",
}

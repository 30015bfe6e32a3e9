"""The statements of `SqliteStorage`."""

from __future__ import annotations

from collections.abc import Sequence

from storage.recovery.rows import HISTORY, STATUSES, Status

COLUMNS = (
    "txid, status, message, owner, generation, lease_until, attempts, failures, not_found, not_found_since, "
    "next_attempt_at, last_error, submitted_at, created_at, updated_at, reopened, history"
)
MIGRATIONS = [
    f"""
    CREATE TABLE recovery_tx (
        txid            BLOB PRIMARY KEY,
        status          TEXT NOT NULL CHECK (status IN {STATUSES}),
        message         TEXT NOT NULL DEFAULT '',
        owner           TEXT,
        generation      INTEGER NOT NULL DEFAULT 0,
        lease_until     INTEGER,
        attempts        INTEGER NOT NULL DEFAULT 0,
        failures        INTEGER NOT NULL DEFAULT 0,
        not_found       INTEGER NOT NULL DEFAULT 0,
        not_found_since INTEGER,
        next_attempt_at INTEGER,
        last_error      TEXT NOT NULL DEFAULT '',
        submitted_at    INTEGER NOT NULL,
        created_at      INTEGER NOT NULL,
        updated_at      INTEGER NOT NULL,
        reopened        INTEGER NOT NULL DEFAULT 0,
        history         TEXT NOT NULL DEFAULT '[]',
        CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
        CHECK ((owner IS NULL) = (lease_until IS NULL)),
        CHECK (status = 'pending' OR owner IS NULL)
    ) WITHOUT ROWID;
    CREATE INDEX recovery_tx_due ON recovery_tx (next_attempt_at) WHERE status = 'pending';
    CREATE INDEX recovery_tx_held ON recovery_tx (owner) WHERE owner IS NOT NULL;
    CREATE INDEX recovery_tx_list ON recovery_tx (status, submitted_at, txid);
    CREATE TRIGGER recovery_tx_final BEFORE UPDATE OF status ON recovery_tx
        WHEN OLD.status <> 'pending' AND NEW.status <> OLD.status AND NEW.reopened = OLD.reopened
        BEGIN SELECT RAISE(ABORT, 'a final status stays'); END;
    """,
    """
    ALTER TABLE recovery_tx ADD COLUMN untold TEXT;
    CREATE INDEX recovery_tx_untold ON recovery_tx (untold, txid) WHERE untold IS NOT NULL;
    """,
    """
    CREATE TABLE recovery_tx_cursor (
        store    TEXT PRIMARY KEY,
        next     INTEGER NOT NULL,
        at       INTEGER NOT NULL,
        tip      INTEGER NOT NULL,
        compared INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE recovery_tx_mined (
        store  TEXT NOT NULL,
        txid   BLOB NOT NULL,
        height INTEGER NOT NULL,
        PRIMARY KEY (store, txid)
    ) WITHOUT ROWID;
    CREATE TABLE recovery_tx_withdrawn (
        store TEXT NOT NULL,
        txid  BLOB NOT NULL,
        PRIMARY KEY (store, txid)
    ) WITHOUT ROWID;
    CREATE INDEX recovery_tx_mined_height ON recovery_tx_mined (store, height);
    """,
]

CLAIMED = """RETURNING txid, owner, generation, attempts, failures, not_found, (:now - submitted_at) / 1000.0,
    (:now - coalesce(not_found_since, :now)) / 1000.0"""
CLAIM = f"""
    UPDATE recovery_tx SET owner = :owner, generation = generation + 1, lease_until = :until, next_attempt_at = :until
    WHERE txid IN (SELECT txid FROM recovery_tx INDEXED BY recovery_tx_due
                   WHERE status = 'pending' AND next_attempt_at < :now
                   ORDER BY next_attempt_at LIMIT :limit) {CLAIMED}"""
CLAIM_SET_BACK = f"""
    UPDATE recovery_tx SET owner = :owner, generation = generation + 1, lease_until = :until, next_attempt_at = :until
    WHERE txid IN (SELECT txid FROM recovery_tx INDEXED BY recovery_tx_held
                   WHERE owner IS NOT NULL AND lease_until > :longest LIMIT :limit) {CLAIMED}"""
DUE_SET_BACK = """
    UPDATE recovery_tx SET next_attempt_at = :now - 1, updated_at = :now
    WHERE status = 'pending' AND owner IS NULL AND next_attempt_at > :now AND updated_at > :now"""
CLAIM_AGAIN = f"""
    UPDATE recovery_tx SET lease_until = :until, next_attempt_at = :until
    WHERE txid IN (SELECT txid FROM recovery_tx WHERE owner = :owner LIMIT :limit) {CLAIMED}"""
CLAIMS = (CLAIM_AGAIN, CLAIM, CLAIM_SET_BACK)  # in this order, as long as there is room
# One statement for a batch: JSON objects, whose txid is hex. `of_hex` is ours, older SQLite has none. A plus keeps the
# planner from an index that has too much in it; only the key may lead to the rows.
BATCH = "FROM (SELECT of_hex(value ->> 'txid') AS txid, value AS v FROM json_each(:batch)) AS b WHERE t.txid = b.txid"
OURS = "+t.owner = v ->> 'owner' AND t.generation = v ->> 'generation' AND +t.status = 'pending' RETURNING txid"
RENEW = f"UPDATE recovery_tx AS t SET lease_until = :until, next_attempt_at = :until {BATCH} AND {OURS}"
RELEASE = f"UPDATE recovery_tx AS t SET owner = NULL, lease_until = NULL, next_attempt_at = :now - 1 {BATCH} AND {OURS}"
SETTLE = f"""
    UPDATE recovery_tx AS t SET status = v ->> 'status', owner = NULL, lease_until = NULL, updated_at = :now,
        untold = CASE WHEN v ->> 'status' <> 'pending' THEN :teller END,
        next_attempt_at = CASE WHEN v ->> 'status' = 'pending' THEN :now + (v ->> 'delay') END,
        message = coalesce(v ->> 'message', message), last_error = coalesce(v ->> 'error', last_error),
        attempts = attempts + (v ->> 'attempt'), failures = failures + (v ->> 'failed'),
        not_found = CASE WHEN v ->> 'not_found' THEN not_found + 1 WHEN v ->> 'attempt' THEN 0 ELSE not_found END,
        not_found_since = CASE WHEN v ->> 'not_found' THEN coalesce(not_found_since, :now)
                               WHEN v ->> 'attempt' THEN NULL ELSE not_found_since END,
        history = CASE WHEN NOT v ->> 'attempt' THEN history
                       WHEN json_array_length(history) >= {HISTORY}
                       THEN json_insert(json_remove(history, '$[0]'), '$[#]', json(v -> 'entry'))
                       ELSE json_insert(history, '$[#]', json(v -> 'entry')) END
    {BATCH} AND {OURS}"""
END = "owner = NULL, lease_until = NULL, generation = generation + 1, updated_at = :now, next_attempt_at = NULL"
CONCLUDE = f"""
    UPDATE recovery_tx AS t SET status = :status, message = :message, untold = :teller, {END}
    {BATCH} AND +t.status = 'pending' RETURNING txid"""
WAKE = f"""
    UPDATE recovery_tx AS t SET next_attempt_at = :now - 1
    {BATCH} AND +t.status = 'pending' AND +t.owner IS NULL RETURNING txid"""
AFRESH = f"""
    UPDATE recovery_tx AS t SET status = 'pending', message = coalesce(:message, message), next_attempt_at = :now - 1,
        failures = 0, not_found = 0, not_found_since = NULL, reopened = reopened + 1, updated_at = :now, untold = NULL
    {BATCH} AND """
REPLAY = AFRESH + "+t.status IN ('dead', 'orphan') RETURNING txid"
REOPEN = AFRESH + "+t.status IN (SELECT value FROM json_each(:statuses)) RETURNING txid"
WAITING = "SELECT txid FROM recovery_tx WHERE txid > :after AND +status = 'pending' ORDER BY txid LIMIT :limit"
DISCARD = f"""
    UPDATE recovery_tx AS t SET status = 'deleted', message = :message, reopened = reopened + 1, {END}
    {BATCH} AND +t.status IN ('pending', 'dead', 'orphan') RETURNING txid"""
REVOKE = f"""
    UPDATE recovery_tx AS t SET owner = NULL, lease_until = NULL, generation = generation + 1,
        next_attempt_at = :now - 1, updated_at = :now
    {BATCH} AND +t.status = 'pending' AND +t.owner IS NOT NULL RETURNING txid"""
UNTOLD = "SELECT txid, status FROM recovery_tx WHERE untold = :teller ORDER BY txid LIMIT :limit"
TOLD = f"""
    UPDATE recovery_tx AS t SET untold = NULL
    {BATCH} AND t.status = v ->> 'value' AND +t.untold = :teller RETURNING txid"""
EXPIRE = """
    UPDATE recovery_tx SET owner = NULL, lease_until = NULL
    WHERE owner IS NOT NULL AND lease_until < :now RETURNING txid"""
DROP = """
    DELETE FROM recovery_tx AS t
    WHERE t.txid IN (SELECT of_hex(value ->> 'txid') FROM json_each(:batch))
        AND +t.status IN ('pending', 'orphan') RETURNING txid"""
ADD = """
    INSERT INTO recovery_tx (txid, status, submitted_at, next_attempt_at, created_at, updated_at)
    SELECT of_hex(value ->> 'txid'), 'pending', :now - :age, :now - :age + :ttl, :now, :now FROM json_each(:batch)
    WHERE true ON CONFLICT (txid) DO NOTHING RETURNING txid"""
CURSOR = "SELECT next, at, tip, compared FROM recovery_tx_cursor WHERE store = :store"
BEGIN_CURSOR = """
    INSERT INTO recovery_tx_cursor (store, next, at, tip, compared) VALUES (:store, :next, :at, :tip, :compared)
    ON CONFLICT (store) DO UPDATE SET next = :next, at = :at, tip = :tip, compared = :compared RETURNING store"""
MOVE_CURSOR = """
    UPDATE recovery_tx_cursor SET next = :next, at = :at, tip = :tip, compared = :compared
    WHERE store = :store AND next = :before RETURNING store"""
MINE = """
    INSERT INTO recovery_tx_mined (store, txid, height)
    SELECT :store, of_hex(value ->> 'txid'), value ->> 'value' FROM json_each(:batch)
    WHERE true ON CONFLICT (store, txid) DO UPDATE SET height = excluded.height RETURNING txid"""
UNMINE = """
    DELETE FROM recovery_tx_mined
    WHERE store = :store AND txid IN (SELECT of_hex(value ->> 'txid') FROM json_each(:batch)) RETURNING txid"""
MINED = """
    SELECT txid, height FROM recovery_tx_mined INDEXED BY recovery_tx_mined_height
    WHERE store = :store AND height <= :height ORDER BY height LIMIT :limit"""
WITHDRAW = """
    INSERT INTO recovery_tx_withdrawn (store, txid)
    SELECT c.store, of_hex(value ->> 'txid') FROM recovery_tx_cursor AS c, json_each(:batch)
    WHERE true ON CONFLICT (store, txid) DO NOTHING RETURNING txid"""
WITHDRAWALS = "SELECT txid FROM recovery_tx_withdrawn WHERE store = :store LIMIT :limit"
WITHDRAWN = """
    DELETE FROM recovery_tx_withdrawn
    WHERE store = :store AND txid IN (SELECT of_hex(value ->> 'txid') FROM json_each(:batch)) RETURNING txid"""
ROW = f"SELECT {COLUMNS} FROM recovery_tx WHERE txid = :txid"
COUNTS = """
    SELECT status, count(*), max((:now - min(submitted_at)) / 1000.0, 0.0) FROM recovery_tx GROUP BY status"""
OLDEST = """SELECT * FROM (SELECT txid, submitted_at FROM recovery_tx WHERE status = '{}' AND submitted_at < :now - :age
                           ORDER BY submitted_at LIMIT :limit)"""


def forget(statuses: Sequence[Status]) -> str:
    """Return how the oldest rows of some statuses are deleted: each status is read in the order of its index."""
    oldest = " UNION ALL ".join(OLDEST.format(status) for status in statuses)
    return f"""DELETE FROM recovery_tx WHERE txid IN
        (SELECT txid FROM ({oldest}) ORDER BY submitted_at LIMIT :limit) RETURNING txid"""


def page(statuses: Sequence[Status], after: bool, newest_first: bool) -> str:
    """Return how a page of rows is read in the order of submission: each status in the order of its index."""
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    where = f" AND (submitted_at, txid) {beyond} (:at, :txid)" if after else ""
    part = (
        f"SELECT * FROM (SELECT {COLUMNS} FROM recovery_tx WHERE status = '{{}}'{where}"
        f" ORDER BY submitted_at {order}, txid {order} LIMIT :most)"
    )
    parts = " UNION ALL ".join(part.format(status) for status in statuses)
    return f"{parts} ORDER BY submitted_at {order}, txid {order} LIMIT :limit OFFSET :offset"

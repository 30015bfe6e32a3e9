"""The statements on the recovery tables, common to SQLite and PostgreSQL.

A statement is a template. The databases fill in the parts that differ: `{t}` is the name of the table, `{now}` the
database's clock, `{ms}` makes an interval of a number of milliseconds, `{since}` and `{ago}` make seconds of the time
between them. A value is `:name`. A batch of rows is a table `b` of one of the kinds in `BATCHES`, whose first column is
`id`.

`owner || ''` is the owner, compared in a way that no index serves: only the key may lead to the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.recovery.rows import STATUSES, Recovering, Status

COLUMNS = ", ".join(Recovering.__struct_fields__)
MIGRATIONS = [
    [
        f"""
        CREATE TABLE {{t}} (
            txid            {{bytes}} PRIMARY KEY,
            status          text NOT NULL CHECK (status IN {STATUSES}),
            message         text NOT NULL DEFAULT '',
            owner           text,
            generation      bigint NOT NULL DEFAULT 0,
            lease_until     {{time}},
            attempts        integer NOT NULL DEFAULT 0,
            failures        integer NOT NULL DEFAULT 0,
            not_found       integer NOT NULL DEFAULT 0,
            not_found_since {{time}},
            next_attempt_at {{time}},
            last_error      text NOT NULL DEFAULT '',
            submitted_at    {{time}} NOT NULL,
            created_at      {{time_of_row}} NOT NULL,
            updated_at      {{time_of_row}} NOT NULL,
            reopened        integer NOT NULL DEFAULT 0,
            history         {{json}} NOT NULL DEFAULT '[]',
            CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
            CHECK ((owner IS NULL) = (lease_until IS NULL)),
            CHECK (status = 'pending' OR owner IS NULL)
        ) {{by_key}}""",
        "CREATE INDEX {t}_due ON {t} (next_attempt_at) WHERE status = 'pending'",
        "CREATE INDEX {t}_held ON {t} (owner) WHERE owner IS NOT NULL",
        "CREATE INDEX {t}_list ON {t} (status, submitted_at, txid)",
        "{final_stays}",
    ],
    [
        "ALTER TABLE {t} ADD COLUMN untold text",
        "CREATE INDEX {t}_untold ON {t} (untold, txid) WHERE untold IS NOT NULL",
    ],
    [
        """
        CREATE TABLE {t}_cursor (
            store    text PRIMARY KEY,
            next     bigint NOT NULL,
            at       bigint NOT NULL,
            tip      bigint NOT NULL,
            compared integer NOT NULL
        ) {by_key}""",
        """
        CREATE TABLE {t}_mined (
            store  text NOT NULL,
            txid   {bytes} NOT NULL,
            height bigint NOT NULL,
            PRIMARY KEY (store, txid)
        ) {by_key}""",
        "CREATE TABLE {t}_withdrawn (store text NOT NULL, txid {bytes} NOT NULL, PRIMARY KEY (store, txid)) {by_key}",
        "CREATE INDEX {t}_mined_height ON {t}_mined (store, height)",
    ],
]

# The columns of a batch, with their types in PostgreSQL. `keys` are transactions; the others have a value for each.
BATCHES: dict[str, dict[str, str]] = {
    "keys": {"id": "bytea"},
    "statuses": {"id": "bytea", "value": "text"},
    "heights": {"id": "bytea", "value": "bigint"},
    "claims": {"id": "bytea", "holder": "text", "as_of": "bigint"},
    "results": {"id": "bytea", "holder": "text", "as_of": "bigint"}
    | dict.fromkeys(("state", "outcome", "why", "error"), "text")
    | dict.fromkeys(("delay", "attempt", "failed", "unknown"), "bigint"),
}

_PUT_OFF = "lease_until = {now} + :lease{ms}, next_attempt_at = {now} + :lease{ms}"


def _claim(which: str, lock: str = "{skip_locked}", fresh: str = "generation = t.generation + 1, ") -> str:
    """Return how the rows that `which` finds are leased. They are chosen first, so there are never too many."""
    return f"""
    WITH chosen (id) AS MATERIALIZED (SELECT txid FROM {{t}} {which} LIMIT :limit {lock})
    UPDATE {{t}} AS t SET owner = :owner, {fresh}{_PUT_OFF} FROM chosen WHERE t.txid = chosen.id
    RETURNING txid, owner, generation, attempts, failures, not_found, {{since}}submitted_at{{ago}},
        coalesce({{since}}not_found_since{{ago}}, 0.0)"""


CLAIM_AGAIN = _claim("WHERE owner = :owner", lock="{locked}", fresh="")
CLAIM = _claim("{due} WHERE status = 'pending' AND next_attempt_at < {now} ORDER BY next_attempt_at")
CLAIM_SET_BACK = _claim("{held} WHERE owner IS NOT NULL AND lease_until > {now} + :lease{ms} * 2")
# Rows that no instance holds, put off by a clock that was set back since: for SQLite, whose clock is the machine's.
DUE_SET_BACK = """
    UPDATE {t} SET next_attempt_at = {now} - 1{ms}, updated_at = {now}
    WHERE status = 'pending' AND owner IS NULL AND next_attempt_at > {now} AND updated_at > {now}"""

_OURS = """t.txid = b.id AND t.owner || '' = b.holder AND t.generation = b.as_of AND t.status || '' = 'pending'
    RETURNING txid"""
RENEW = f"UPDATE {{t}} AS t SET {_PUT_OFF} FROM {{claims}} WHERE {_OURS}"
RELEASE = f"""
    UPDATE {{t}} AS t SET owner = NULL, lease_until = NULL, next_attempt_at = {{now}} - 1{{ms}}
    FROM {{claims}} WHERE {_OURS}"""
SETTLE = f"""
    UPDATE {{t}} AS t SET status = b.state, owner = NULL, lease_until = NULL, updated_at = {{now}},
        untold = CASE WHEN b.state <> 'pending' THEN CAST(:reporter AS text) END,
        next_attempt_at = CASE WHEN b.state = 'pending' THEN {{now}} + b.delay{{ms}} END,
        message = coalesce(b.why, t.message), last_error = coalesce(b.error, t.last_error),
        attempts = t.attempts + b.attempt, failures = t.failures + b.failed,
        not_found = CASE WHEN b.unknown = 1 THEN t.not_found + 1 WHEN b.attempt = 1 THEN 0 ELSE t.not_found END,
        not_found_since = CASE WHEN b.unknown = 1 THEN coalesce(t.not_found_since, {{now}})
                               WHEN b.attempt = 0 THEN t.not_found_since END,
        history = CASE WHEN b.attempt = 0 THEN t.history ELSE {{remembered}} END
    FROM {{results}} WHERE {_OURS}"""
# What `{remembered}` adds to the history next to the time; the oldest of too many is deleted.
REMEMBERED = "'owner', b.holder, 'generation', b.as_of, 'outcome', b.outcome, 'error', b.error"

_KEYS = "FROM {keys} WHERE t.txid = b.id AND t.status || ''"
_END = "owner = NULL, lease_until = NULL, generation = t.generation + 1, updated_at = {now}, next_attempt_at = NULL"
CONCLUDE = f"""
    UPDATE {{t}} AS t SET status = :status, message = :message, untold = :reporter, {_END}
    {_KEYS} = 'pending' RETURNING txid"""
DISCARD = f"""
    UPDATE {{t}} AS t SET status = 'deleted', message = :message, reopened = t.reopened + 1, {_END}
    {_KEYS} IN ('pending', 'dead', 'orphan') RETURNING txid"""
REVOKE = f"""
    UPDATE {{t}} AS t SET owner = NULL, lease_until = NULL, generation = t.generation + 1,
        next_attempt_at = {{now}} - 1{{ms}}, updated_at = {{now}}
    {_KEYS} = 'pending' AND t.owner IS NOT NULL RETURNING txid"""
ADD = """
    INSERT INTO {t} (txid, status, submitted_at, next_attempt_at, created_at, updated_at)
    SELECT id, 'pending', {now} - :age{ms}, {now} - :age{ms} + :ttl{ms}, {now}, {now} FROM {keys}
    WHERE true ON CONFLICT (txid) DO NOTHING RETURNING txid"""
DROP = """
    DELETE FROM {t} WHERE txid IN (SELECT id FROM {keys}) AND status || '' IN ('pending', 'orphan') RETURNING txid"""

UNPUBLISHED = "SELECT txid, status FROM {t} WHERE untold = :reporter ORDER BY txid LIMIT :limit"
PUBLISHED = """
    UPDATE {t} AS t SET untold = NULL FROM {statuses}
    WHERE t.txid = b.id AND t.status || '' = b.value AND t.untold || '' = :reporter RETURNING txid"""
ROW = f"SELECT {COLUMNS}, history FROM {{t}} WHERE txid = :txid"
COUNTS = "SELECT status, count(*), {since}min(submitted_at){ago} FROM {t} GROUP BY status"

CURSOR = "SELECT next, at, tip, compared FROM {t}_cursor WHERE store = :store"
BEGIN_CURSOR = """
    INSERT INTO {t}_cursor (store, next, at, tip, compared) VALUES (:store, :next, :at, :tip, :compared)
    ON CONFLICT (store) DO UPDATE
    SET next = excluded.next, at = excluded.at, tip = excluded.tip, compared = excluded.compared RETURNING store"""
MOVE_CURSOR = """
    UPDATE {t}_cursor SET next = :next, at = :at, tip = :tip, compared = :compared
    WHERE store = :store AND next = :before RETURNING store"""
MINE = """
    INSERT INTO {t}_mined (store, txid, height) SELECT :store, id, value FROM {heights}
    WHERE true ON CONFLICT (store, txid) DO UPDATE SET height = excluded.height RETURNING txid"""
UNMINE = "DELETE FROM {t}_mined WHERE store = :store AND txid IN (SELECT id FROM {keys}) RETURNING txid"
MINED = """
    SELECT txid, height FROM {t}_mined {by_height}
    WHERE store = :store AND height <= :height ORDER BY height LIMIT :limit"""
WITHDRAW = """
    INSERT INTO {t}_withdrawn (store, txid) SELECT c.store, b.id FROM {t}_cursor AS c, {keys}
    WHERE true ON CONFLICT (store, txid) DO NOTHING RETURNING txid"""
WITHDRAWALS = "SELECT txid FROM {t}_withdrawn WHERE store = :store LIMIT :limit"
WITHDRAWN = "DELETE FROM {t}_withdrawn WHERE store = :store AND txid IN (SELECT id FROM {keys}) RETURNING txid"


def reopen(statuses: Iterable[Status]) -> str:
    """Return how rows of some statuses are made pending again."""
    return f"""
    UPDATE {{t}} AS t SET status = 'pending', message = coalesce(:message, t.message),
        next_attempt_at = {{now}} - 1{{ms}}, failures = 0, not_found = 0, not_found_since = NULL,
        reopened = t.reopened + 1, updated_at = {{now}}, untold = NULL
    {_KEYS} IN ({", ".join(map(repr, statuses))}) RETURNING txid"""


def forget(statuses: Sequence[Status]) -> str:
    """Return how the oldest rows of some statuses are deleted: each status is read in the order of its index."""
    oldest = _each(statuses, "txid, submitted_at", "AND submitted_at < {now} - :age{ms} ORDER BY submitted_at")
    return f"""
    DELETE FROM {{t}} WHERE txid IN (SELECT txid FROM ({oldest}) AS o ORDER BY submitted_at LIMIT :limit)
    RETURNING txid"""


def page(statuses: Sequence[Status], after: bool, newest_first: bool) -> str:
    """Return how a page of rows is read in the order of submission: each status in the order of its index."""
    way, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    where, order = (
        f"AND (submitted_at, txid) {beyond} (:at, :txid) " if after else "",
        f"submitted_at {way}, txid {way}",
    )
    pages = _each(statuses, COLUMNS, f"{where}ORDER BY {order}", ":most")
    return f"SELECT * FROM ({pages}) AS p ORDER BY {order} LIMIT :limit OFFSET :offset"


def _each(statuses: Sequence[Status], columns: str, which: str, limit: str = ":limit") -> str:
    one = f"SELECT * FROM (SELECT {columns} FROM {{t}} WHERE status = '%s' {which} LIMIT {limit}) AS s"
    return " UNION ALL ".join(one % status for status in statuses)

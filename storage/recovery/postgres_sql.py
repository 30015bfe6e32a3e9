"""The statements of `PostgresStorage`; `{table}` is the name of its table."""

from __future__ import annotations

from collections.abc import Sequence

from storage.recovery.rows import HISTORY, STATUSES, Status

COLUMNS = (
    "txid, status, message, owner, generation, lease_until, attempts, failures, not_found, not_found_since, "
    "next_attempt_at, last_error, submitted_at, created_at, updated_at, reopened, history"
)
MIGRATIONS = [
    f"""
    CREATE TABLE {{table}} (
        txid            bytea PRIMARY KEY,
        status          text NOT NULL CHECK (status IN {STATUSES}),
        message         text NOT NULL DEFAULT '',
        owner           text,
        generation      bigint NOT NULL DEFAULT 0,
        lease_until     timestamptz,
        attempts        integer NOT NULL DEFAULT 0,
        failures        integer NOT NULL DEFAULT 0,
        not_found       integer NOT NULL DEFAULT 0,
        not_found_since timestamptz,
        next_attempt_at timestamptz,
        last_error      text NOT NULL DEFAULT '',
        submitted_at    timestamptz NOT NULL,
        created_at      timestamptz NOT NULL DEFAULT now(),
        updated_at      timestamptz NOT NULL DEFAULT now(),
        reopened        integer NOT NULL DEFAULT 0,
        history         jsonb NOT NULL DEFAULT '[]',
        CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
        CHECK ((owner IS NULL) = (lease_until IS NULL)),
        CHECK (status = 'pending' OR owner IS NULL)
    );
    CREATE INDEX {{table}}_due ON {{table}} (next_attempt_at) WHERE status = 'pending';
    CREATE INDEX {{table}}_held ON {{table}} (owner) WHERE owner IS NOT NULL;
    CREATE INDEX {{table}}_list ON {{table}} (status, submitted_at, txid);
    CREATE FUNCTION {{table}}_final() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'a final status stays'; END $$;
    CREATE TRIGGER {{table}}_final BEFORE UPDATE OF status ON {{table}} FOR EACH ROW
        WHEN (OLD.status <> 'pending' AND NEW.status <> OLD.status AND NEW.reopened = OLD.reopened)
        EXECUTE FUNCTION {{table}}_final();
    """,
    """
    ALTER TABLE {table} ADD COLUMN untold text;
    CREATE INDEX {table}_untold ON {table} (untold, txid) WHERE untold IS NOT NULL;
    """,
    """
    CREATE TABLE {table}_cursor (
        store    text PRIMARY KEY,
        next     bigint NOT NULL,
        at       bigint NOT NULL,
        tip      bigint NOT NULL,
        compared integer NOT NULL
    );
    CREATE TABLE {table}_mined (
        store  text NOT NULL,
        txid   bytea NOT NULL,
        height bigint NOT NULL,
        PRIMARY KEY (store, txid)
    );
    CREATE TABLE {table}_withdrawn (
        store text NOT NULL,
        txid  bytea NOT NULL,
        PRIMARY KEY (store, txid)
    );
    CREATE INDEX {table}_mined_height ON {table}_mined (store, height);
    """,
]

# The status is a literal everywhere: with a parameter a generic plan could not use the partial indexes.
CLAIMED = """RETURNING t.txid, t.owner, t.generation, t.attempts, t.failures, t.not_found,
    extract(epoch FROM now() - t.submitted_at)::float8,
    coalesce(extract(epoch FROM now() - t.not_found_since), 0)::float8"""
CLAIM = f"""
    WITH due AS MATERIALIZED (
        SELECT txid FROM {{table}} WHERE status = 'pending' AND next_attempt_at < now()
        ORDER BY next_attempt_at LIMIT $3 FOR UPDATE SKIP LOCKED)
    UPDATE {{table}} AS t
    SET owner = $1, generation = t.generation + 1, lease_until = now() + $2, next_attempt_at = now() + $2
    FROM due WHERE t.txid = due.txid {CLAIMED}"""
CLAIM_SET_BACK = f"""
    UPDATE {{table}} AS t
    SET owner = $1, generation = t.generation + 1, lease_until = now() + $2, next_attempt_at = now() + $2
    FROM (SELECT txid FROM {{table}} WHERE owner IS NOT NULL AND lease_until > now() + 2 * $2::interval
          LIMIT $3 FOR UPDATE SKIP LOCKED) AS late
    WHERE t.txid = late.txid {CLAIMED}"""
CLAIM_AGAIN = f"""
    UPDATE {{table}} AS t SET lease_until = now() + $2, next_attempt_at = now() + $2
    FROM (SELECT txid FROM {{table}} WHERE owner = $1 LIMIT $3 FOR UPDATE) AS mine
    WHERE t.txid = mine.txid {CLAIMED}"""
CLAIMS = (CLAIM_AGAIN, CLAIM, CLAIM_SET_BACK)  # in this order, as long as there is room
KEYS = "unnest($1::bytea[], $2::text[], $3::bigint[])"
# Owner and status are compared in a way that no index serves: only the key may lead to the rows of a batch.
OURS = "t.txid = b.txid AND t.owner || '' = b.owner AND t.generation = b.generation AND t.status || '' = 'pending'"
RENEW = f"""
    UPDATE {{table}} AS t SET lease_until = now() + $4, next_attempt_at = now() + $4
    FROM {KEYS} AS b (txid, owner, generation) WHERE {OURS} RETURNING t.txid"""
RELEASE = f"""
    UPDATE {{table}} AS t SET owner = NULL, lease_until = NULL, next_attempt_at = now() - interval '1 ms'
    FROM {KEYS} AS b (txid, owner, generation) WHERE {OURS} RETURNING t.txid"""
SETTLE = f"""
    UPDATE {{table}} AS t SET status = b.status, owner = NULL, lease_until = NULL, updated_at = now(),
        untold = CASE WHEN b.status <> 'pending' THEN $12::text END,
        next_attempt_at = CASE WHEN b.status = 'pending' THEN now() + b.delay END,
        message = coalesce(b.message, t.message), last_error = coalesce(b.error, t.last_error),
        attempts = t.attempts + b.attempt::int, failures = t.failures + b.failed::int,
        not_found = CASE WHEN b.not_found THEN t.not_found + 1 WHEN b.attempt THEN 0 ELSE t.not_found END,
        not_found_since = CASE WHEN b.not_found THEN coalesce(t.not_found_since, now())
                               WHEN NOT b.attempt THEN t.not_found_since END,
        history = CASE WHEN NOT b.attempt THEN t.history
            ELSE (CASE WHEN jsonb_array_length(t.history) >= {HISTORY} THEN t.history - 0 ELSE t.history END)
                 || jsonb_build_object('at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                    'owner', b.owner, 'generation', b.generation, 'outcome', b.outcome, 'error', b.error) END
    FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::interval[], $7::text[], $8::text[],
                $9::bool[], $10::bool[], $11::bool[])
        AS b (txid, owner, generation, status, outcome, delay, message, error, attempt, failed, not_found)
    WHERE {OURS} RETURNING t.txid"""
END = "owner = NULL, lease_until = NULL, generation = generation + 1, updated_at = now(), next_attempt_at = NULL"
CONCLUDE = f"""
    UPDATE {{table}} SET status = $2, message = $3, untold = $4, {END}
    WHERE txid = ANY ($1::bytea[]) AND status || '' = 'pending' RETURNING txid"""
WAKE = """
    UPDATE {table} SET next_attempt_at = now() - interval '1 ms'
    WHERE txid = ANY ($1::bytea[]) AND status || '' = 'pending' AND owner IS NULL RETURNING txid"""
AFRESH = """
    UPDATE {table} SET status = 'pending', message = coalesce($2, message),
        next_attempt_at = now() - interval '1 ms', failures = 0, not_found = 0, not_found_since = NULL,
        reopened = reopened + 1, updated_at = now(), untold = NULL
    WHERE txid = ANY ($1::bytea[]) AND """
REPLAY = AFRESH + "status || '' IN ('dead', 'orphan') RETURNING txid"
REOPEN = AFRESH + "status || '' = ANY ($3::text[]) RETURNING txid"
WAITING = "SELECT txid FROM {table} WHERE txid > $1 AND status || '' = 'pending' ORDER BY txid LIMIT $2"
DISCARD = f"""
    UPDATE {{table}} SET status = 'deleted', message = $2, reopened = reopened + 1, {END}
    WHERE txid = ANY ($1::bytea[]) AND status || '' IN ('pending', 'dead', 'orphan') RETURNING txid"""
REVOKE = """
    UPDATE {table} SET owner = NULL, lease_until = NULL, generation = generation + 1,
        next_attempt_at = now() - interval '1 ms', updated_at = now()
    WHERE txid = ANY ($1::bytea[]) AND status || '' = 'pending' AND owner IS NOT NULL RETURNING txid"""
UNTOLD = "SELECT txid, status FROM {table} WHERE untold = $1 ORDER BY txid LIMIT $2"
TOLD = """
    UPDATE {table} AS t SET untold = NULL FROM unnest($1::bytea[], $2::text[]) AS b (txid, status)
    WHERE t.txid = b.txid AND t.status || '' = b.status AND t.untold || '' = $3 RETURNING t.txid"""
EXPIRE = """
    UPDATE {table} SET owner = NULL, lease_until = NULL
    WHERE owner IS NOT NULL AND lease_until < now() RETURNING txid"""
DROP = """
    DELETE FROM {table} WHERE txid = ANY ($1::bytea[]) AND status || '' IN ('pending', 'orphan') RETURNING txid"""
ADD = """
    INSERT INTO {table} (txid, status, submitted_at, next_attempt_at)
    SELECT txid, 'pending', now() - $2::interval, now() - $2::interval + $3::interval
    FROM unnest($1::bytea[]) AS b (txid)
    ON CONFLICT (txid) DO NOTHING RETURNING txid"""
CURSOR = "SELECT next, at, tip, compared FROM {table}_cursor WHERE store = $1"
BEGIN_CURSOR = """
    INSERT INTO {table}_cursor (store, next, at, tip, compared) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (store) DO UPDATE SET next = $2, at = $3, tip = $4, compared = $5 RETURNING store"""
MOVE_CURSOR = """
    UPDATE {table}_cursor SET next = $2, at = $3, tip = $4, compared = $5 WHERE store = $1 AND next = $6
    RETURNING store"""
MINE = """
    INSERT INTO {table}_mined (store, txid, height)
    SELECT $3, txid, height FROM unnest($1::bytea[], $2::bigint[]) AS b (txid, height)
    ON CONFLICT (store, txid) DO UPDATE SET height = excluded.height RETURNING txid"""
UNMINE = "DELETE FROM {table}_mined WHERE store = $2 AND txid = ANY ($1::bytea[]) RETURNING txid"
MINED = "SELECT txid, height FROM {table}_mined WHERE store = $1 AND height <= $2 ORDER BY height LIMIT $3"
WITHDRAW = """
    INSERT INTO {table}_withdrawn (store, txid)
    SELECT c.store, b.txid FROM {table}_cursor AS c CROSS JOIN unnest($1::bytea[]) AS b (txid)
    ON CONFLICT (store, txid) DO NOTHING RETURNING txid"""
WITHDRAWALS = "SELECT txid FROM {table}_withdrawn WHERE store = $1 LIMIT $2"
WITHDRAWN = "DELETE FROM {table}_withdrawn WHERE store = $2 AND txid = ANY ($1::bytea[]) RETURNING txid"
ROW = f"SELECT {COLUMNS} FROM {{table}} WHERE txid = $1"
COUNTS = """
    SELECT status, count(*), extract(epoch FROM now() - min(submitted_at))::float8 FROM {table} GROUP BY status"""
OLDEST = """
    (SELECT txid, submitted_at FROM {{table}} WHERE status = '{}' AND submitted_at < now() - $1::interval
     ORDER BY submitted_at LIMIT $2)"""


def forget(statuses: Sequence[Status]) -> str:
    """Return how the oldest rows of some statuses are deleted: each status is read in the order of its index."""
    oldest = " UNION ALL ".join(OLDEST.format(status) for status in statuses)
    return f"""DELETE FROM {{table}} WHERE txid IN
        (SELECT txid FROM ({oldest}) AS o ORDER BY submitted_at LIMIT $2) RETURNING txid"""


def page(statuses: Sequence[Status], after: bool, newest_first: bool) -> str:
    """Return how a page of rows is read in the order of submission: each status in the order of its index."""
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    where = f" AND (submitted_at, txid) {beyond} ($4, $5)" if after else ""
    part = (
        f"(SELECT {COLUMNS} FROM {{table}} WHERE status = '%s'{where}"
        f" ORDER BY submitted_at {order}, txid {order} LIMIT $1)"
    )
    parts = " UNION ALL ".join(part % status for status in statuses)
    return f"SELECT * FROM ({parts}) AS p ORDER BY submitted_at {order}, txid {order} LIMIT $2 OFFSET $3"

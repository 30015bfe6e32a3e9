"""Random cursors and parameters for every list over HTTP: no answer is a 500. Random requests are in `tests/attack`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from patience import until
from questions import Api, failure, running_api, short_folder
from scenarios import address, block, digest, output, tx

from storage.indexes import NAMES

FIRST = block(None, tx("a", *(output("ann", n) for n in range(40)), raw=b"\x01"))
ANN = address("ann").hex()
LISTS = [
    *(f"/api/v1/addresses/{ANN}/{what}" for what in ("utxos", "transactions")),
    *(f"/api/v1/credentials/{ANN[2:]}/utxos", f"/api/v1/txs/{digest('tx', 'a').hex()}/utxos"),
    *(
        f"/api/v1/policies/{'ab' * 28}/utxos",
        f"/api/v1/assets/{'ab' * 30}/utxos",
        "/api/v1/pruner/jobs",
        "/api/v1/recovery/transactions",
    ),
    *("/api/v1/txs", "/api/v1/changes"),
]
TEXTS = ["", "0", "-1", "1e3", "１", "4294967296", "9" * 400, "ü", "\0", "a" * 3000, "null", "asc", "desc", "origin"]
ANYTHING: list[Any] = [0, 1, -1, 1 << 63, None, "asc", b"", bytes(8), bytes(12), b"\xff" * 12, 1e300, [], {}]
ANYTHING += [address("ann"), "pending", "dead", digest("x"), datetime(1, 1, 1), datetime(9999, 12, 31, tzinfo=UTC)]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, utxo={"index": dict.fromkeys(NAMES, True)}) as api:
        api.feed(FIRST)
        until(lambda: api.ask("/api/v1/recovery/transactions").status_code == 200)  # its database has been created
        yield api
        assert not {"request_failed", "http_worker_ended"} & {*api.daemon.events()}


def packed(value: Any) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(value)).rstrip(b"=").decode()


def cursor(rng: Random, real: str) -> str:
    """Return what looks like a cursor: a real one that was changed, or one with values of any kind."""
    if rng.random() < 0.3:
        return "".join(rng.choice((each, each, each, "A", "_", "")) for each in real)
    order, status = rng.choice(("asc", "desc")), rng.choice((None, "pending"))
    time = datetime.fromtimestamp(rng.randrange(1 << 33), UTC)
    place = {"submitted_at": rng.choice((*ANYTHING, "0001-01-01T00:00:00+14:00", "2020")), "txid": rng.choice(ANYTHING)}
    shapes: list[Any] = [
        [rng.choice(ANYTHING) for _ in range(rng.randrange(8))],
        [rng.choice(ANYTHING), rng.choice(ANYTHING), rng.choice(ANYTHING), order, rng.choice((b"pruner jobs", b"x"))],
        [1, FIRST["hash"], rng.randbytes(12), order, digest("tx", "a") + b"slots"],
        [1, FIRST["hash"], rng.choice((bytes(12), b"\xff" * 12)), order, b"pruner jobs"],
        [status, order, rng.choice((place, {"submitted_at": time, "txid": rng.randbytes(32)}))],
    ]
    return packed(rng.choice(shapes))


def test_times_in_cursors_that_no_database_accepts(api: Api) -> None:
    times = {"2020-01-01T00:00:00Z": 200, "2020-01-01T00:00:00": 400, "0001-01-01T00:00:00": 400}
    times |= {"0001-01-01T00:00:00+14:00": 400, "9999-12-31T23:59:59-14:00": 400}
    for at, status in (*times.items(), (1e300, 400), (None, 400)):
        made = packed([None, "asc", {"submitted_at": at, "txid": digest("x")}])
        assert api.ask(f"/api/v1/recovery/transactions?cursor={made}").status_code == status


def test_random_parameters(api: Api) -> None:
    rng, met = Random("parameters"), Counter[int]()
    real = {path: api.ask(f"{path}?count=1").headers.get("x-next-cursor", "AA") for path in LISTS}
    for _ in range(800):
        path, query = rng.choice(LISTS), []
        for name in rng.sample(["count", "order", "page", "cursor", "asset", "status", "from", "x"], rng.randrange(4)):
            value = rng.choice((rng.choice(TEXTS), str(rng.randrange(1, 1000)), "asc", "ab" * rng.randrange(27, 62)))
            value = cursor(rng, real[path]) if name == "cursor" else value
            query.append(f"{name}={quote(value, safe='')}")
        answer = api.ask(f"{path}?{'&'.join(query)}")
        met[answer.status_code] += 1
        assert answer.status_code in {200, 400, 404, 409}, (path, query, answer.text)
        if answer.status_code != 200 and "detail" not in answer.json():
            failure(answer, answer.status_code, answer.json()["error"])
    assert met[200] > 100 and met[400] > 100, met

"""Kupo's API over a real run: every pattern, parameter and form, compared with a model of the same blocks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import httpx
import kupo_contract
import pytest
from chain_model import Coin, coins_of, datum_of, match_of, point_of, scripts_of
from daemons import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from preview import CODEC, before, blocks, coins, feed, own_listener, served
from questions import Api, Web, short_folder

from formats import bech32
from handlers.events import BlockApplied, GenesisOutputs, Output, Rollback, RollbackPoint, Tx
from storage.indexes import payment_credential, stake_credential

LANGUAGES = ("native", "plutus:v1", "plutus:v2", "plutus:v3")
Kept = Callable[[Coin], object]


@pytest.fixture(scope="module")
def kupo() -> Iterator[Api]:
    with short_folder() as folder, served(folder) as api:
        yield api


def ask(api: Api, path: str, status: int = 200, **headers: str) -> Any:
    answer = api.ask(f"/kupo{path}", **headers)
    assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["x-most-recent-checkpoint"] == str(blocks()[-1].slot)
    content = answer.json()
    if status >= 400:
        assert set(content) <= {"hint", "details"} and content["hint"]
    else:
        assert answer.headers["content-type"] == "application/json;charset=utf-8"
        assert answer.headers["etag"] == blocks()[-1].hash.hex()
    if status != 404:
        kupo_contract.check(path, status, content)
    return content


def expected(kept: Kept, *, order: str = "desc") -> list[dict[str, Any]]:
    """Return the matches among the outputs of the run, in Kupo's order."""
    found = [coin for coin in coins().values() if kept(coin)]
    found.sort(key=lambda coin: (coin.block.height, coin.place, coin.number), reverse=order == "desc")
    return [match_of(coin, CODEC.write) for coin in found]


def compare(api: Api, path: str, kept: Kept, *, most: int = 10**6) -> None:
    """Compare the answers with each flag and order."""
    flags: dict[str, Kept] = {"unspent": lambda coin: not coin.spend, "spent": lambda coin: coin.spend}
    flags[""] = lambda coin: True
    mark = "&" if "?" in path else "?"
    for flag, more in flags.items():
        for name, order in (("", "desc"), ("order=oldest_first", "asc")):
            query = "&".join(each for each in (flag, name) if each)
            found = ask(api, f"{path}{mark if query else ''}{query}")
            wanted = expected(lambda coin, more=more: kept(coin) and more(coin), order=order)  # type: ignore[misc]
            assert found == wanted, (path, query)


def some(kept: Kept) -> Coin:
    return next(coin for coin in coins().values() if kept(coin))


def held(coin: Coin, policy: bytes, name: bytes | None = None) -> bool:
    return any(p == policy and name in (None, n) for p, n, _ in coin.output.assets)


def test_wildcards(kupo: Api) -> None:
    for path in ("/matches", "/matches/*", "/v1/matches/*"):
        compare(kupo, path, lambda coin: True)
    for path in ("/matches/*/*", "/matches/*%2F*"):
        compare(kupo, path, lambda coin: payment_credential(coin.output.address))


def test_addresses_and_credentials(kupo: Api) -> None:
    coin = some(lambda coin: stake_credential(coin.output.address) and coin.spend)
    address = coin.output.address
    payment, stake = address[1:29], address[29:57]
    own: Kept = lambda other: other.output.address == address  # noqa: E731
    for text in (CODEC.write(address), address.hex(), address.hex().upper()):
        compare(kupo, f"/matches/{text}", own)
    pays: Kept = lambda other: payment_credential(other.output.address) == payment  # noqa: E731
    for text in (payment.hex(), payment.hex().upper(), to_bech32("addr_vkh", payment), to_bech32("vkh", payment)):
        compare(kupo, f"/matches/{text}/*", pays)
    delegates: Kept = lambda other: stake_credential(other.output.address) == stake  # noqa: E731
    for path in (f"*/{stake.hex()}", to_bech32("stake_test", b"\xe0" + stake), f"*/{to_bech32('stake_vkh', stake)}"):
        compare(kupo, f"/matches/{path}", delegates)
    compare(kupo, f"/matches/{payment.hex()}/{stake.hex()}", lambda other: pays(other) and delegates(other))
    key = bytes(range(32))
    assert ask(kupo, f"/matches/{key.hex()}/*") == []
    other = blake2b(key, digest_size=28).digest()
    assert ask(kupo, f"/matches/{to_bech32('addr_vk', key)}/{other.hex()}") == []


def to_bech32(prefix: str, raw: bytes) -> str:
    return bech32.encode(prefix, *bech32.symbols(raw))


def test_assets(kupo: Api) -> None:
    policy, name, _ = some(lambda coin: coin.output.assets).output.assets[0]
    compare(kupo, f"/matches/{policy.hex()}.*", lambda coin: held(coin, policy))
    compare(kupo, f"/matches/{policy.hex()}.{name.hex()}", lambda coin: held(coin, policy, name))
    compare(kupo, f"/matches/{policy.hex()}.", lambda coin: held(coin, policy, b""))
    compare(kupo, f"/matches/*?policy_id={policy.hex()}", lambda coin: held(coin, policy))
    address = some(lambda coin: held(coin, policy, name)).output.address
    own: Kept = lambda coin: coin.output.address == address and held(coin, policy, name)  # noqa: E731
    compare(kupo, f"/matches/{CODEC.write(address)}?asset_name={name.hex()}&policy_id={policy.hex()}", own)
    payment = address[1:29]
    compare(
        kupo,
        f"/matches/{payment.hex()}/*?policy_id={policy.hex()}",
        lambda coin: payment_credential(coin.output.address) == payment and held(coin, policy),
    )


def test_references(kupo: Api) -> None:
    for coin in (some(lambda coin: coin.spend), some(lambda coin: coin.block.height and coin.number == 1)):
        place, txid, address = (coin.txid, coin.number), coin.txid.hex(), coin.output.address
        paths: list[tuple[str, Kept]] = [
            (f"*@{txid}", lambda other, place=place: other.txid == place[0]),  # type: ignore[misc]
            (f"*?transaction_id={txid}", lambda other, place=place: other.txid == place[0]),  # type: ignore[misc]
            (f"{place[1]}@{txid}", lambda other, place=place: (other.txid, other.number) == place),  # type: ignore[misc]
        ]
        own = lambda other, a=address, t=coin.txid: other.txid == t and other.output.address == a  # noqa: E731
        paths += [(f"*?output_index={place[1]}&transaction_id={txid}", paths[-1][1])]
        for path, kept in (*paths, (f"{CODEC.write(address)}?transaction_id={txid}", own)):
            compare(kupo, f"/matches/{path}", kept)
    assert ask(kupo, f"/matches/*@{'00' * 32}") == ask(kupo, f"/matches/99@{coin.txid.hex()}") == []


def test_ranges(kupo: Api) -> None:
    low, high = blocks()[20], blocks()[40]
    assert low.slot is not None and high.slot is not None
    for first in (str(low.slot), f"{low.slot}.{low.hash.hex()}"):
        for last in (str(high.slot), f"{high.slot}.{high.hash.hex()}"):
            compare(
                kupo,
                f"/matches?created_after={first}&created_before={last}",
                lambda coin: low.height <= coin.block.height <= high.height,
            )
    for query, kept in (
        (f"created_after={low.slot + 1}", lambda coin: coin.block.height > low.height),
        (f"created_before={high.slot - 1}", lambda coin: coin.block.height < high.height),
        (f"created_after={blocks()[-1].slot + 1}", lambda coin: False),  # type: ignore[operator]
        (f"created_before={blocks()[0].slot - 1}", lambda coin: coin.block.height == 0),  # type: ignore[operator]
    ):
        compare(kupo, f"/matches?{query}", kept)
    at = blocks()[30]
    for query in (f"created_after={at.slot}.{'00' * 32}", f"spent_before={at.slot}.{blocks()[29].hash.hex()}"):
        assert ask(kupo, f"/matches?{query}", 400)["details"]["ancestor"] == point_of(blocks()[29])
    query = f"/matches/*?spent_after={low.slot}&spent_before={high.slot}.{high.hash.hex()}"
    assert ask(kupo, query) == expected(
        lambda coin: coin.spend and low.height <= coin.spend.block.height <= high.height
    )
    assert ask(kupo, f"/matches?created_before={low.slot}&spent_after={high.slot}") == expected(
        lambda coin: coin.block.height <= low.height and coin.spend and coin.spend.block.height >= high.height
    )


MALFORMED = """
/matches/*?spent&unspent /matches/*?unspent= /matches/*?unspent&unspent /matches/*?order=newest /matches/*?order
/matches/*?created_after=x /matches/*?created_after=1&spent_after=2 /matches/*?created_before=1.00
/matches/*?asset_name=00 /matches/*?output_index=0 /matches/*?policy_id=00 /matches/*?limit=0 /matches/*?cursor=x
/matches/addr_test1 /matches/zz/* /matches/{7} /datums/00 /checkpoints/x /checkpoints/1?strict=1 /metadata/5
"""


def test_malformed_and_unknown_paths(kupo: Api) -> None:
    policy, txid = "00" * 28, "00" * 32
    pairs = f"/matches/*?policy_id={policy}&transaction_id={txid}"
    others = (f"/matches/{policy[2:]}.*", f"/matches/{policy}.{'00' * 33}", f"/matches/1.5@{txid}", "/matches/ ")
    for path in (*MALFORMED.split(), pairs, *others, f"/scripts/{txid}"):
        ask(kupo, path, 400)
    for path in ("", "/", "/nothing", "/matches/a/b/c", "/health/x", "/datums", "/v2/matches"):
        ask(kupo, path, 404)


def test_datums_and_scripts(kupo: Api) -> None:
    known = {d: bytes(c.output.inline_datum) for c in coins().values() if c.output.inline_datum and (d := datum_of(c))}
    hashes = {d for coin in coins().values() if (d := datum_of(coin))}
    for block in blocks():
        for tx in block.txs:
            revealed = {blake2b(datum, digest_size=32).digest(): datum for datum in tx.datums}
            known |= {digest: datum for digest, datum in revealed.items() if digest in hashes}
    assert known
    for digest in [*known, bytes(32)]:
        wanted = {"datum": known[digest].hex()} if digest in known else None
        assert ask(kupo, f"/datums/{digest.hex()}") == wanted
    scripts = list(scripts_of(coins()))
    assert scripts and ask(kupo, f"/scripts/{'00' * 28}") is None
    for digest, language, code in scripts:
        found = {"language": LANGUAGES[language], "script": code.hex()}
        assert ask(kupo, f"/scripts/{digest.hex()}") == found
    by_place = {(coin.txid.hex(), coin.number): coin for coin in coins().values()}
    seen = 0
    for match in ask(kupo, "/matches?resolve_hashes"):
        coin = by_place[match["transaction_id"], match["output_index"]]
        datum = known.get(datum_of(coin) or b"")
        assert match["datum"] == (None if datum is None else datum.hex())
        assert (match["script"] is None) == (coin.output.script_ref is None)
        seen += match["datum"] is not None
    assert seen


def test_quantities_as_strings(kupo: Api) -> None:
    answer = kupo.ask("/kupo/matches?unspent", Accept="application/json; asset-quantity=string")
    assert "asset-quantity=string" in answer.headers["content-type"]
    wanted = expected(lambda coin: not coin.spend)
    for match in wanted:
        match["value"] = {
            "coins": str(match["value"]["coins"]),
            "assets": {unit: str(quantity) for unit, quantity in match["value"]["assets"].items()},
        }
    assert answer.json() == wanted


def test_checkpoints(kupo: Api) -> None:
    sample = ask(kupo, "/checkpoints")
    points = [point_of(block) for block in reversed(blocks())]
    assert sample[0] == points[0] and [each for each in points if each in sample] == sample
    at = blocks()[30]
    assert at.slot is not None
    assert ask(kupo, f"/checkpoints/{at.slot}") == ask(kupo, f"/checkpoints/{at.slot}?strict") == point_of(at)
    between = at.slot + 1
    assert blocks()[31].slot != between
    assert ask(kupo, f"/checkpoints/{between}") == point_of(at)
    assert ask(kupo, f"/checkpoints/{between}?strict") is None
    assert ask(kupo, "/checkpoints/0") is None


def test_health_and_metrics(kupo: Api) -> None:
    health = kupo.ask("/kupo/health")
    content = health.json()
    assert health.status_code in (200, 503) and content["most_recent_checkpoint"] == blocks()[-1].slot
    assert (content["connection_status"] == "connected") == (health.status_code == 200)
    assert content["configuration"] == {"indexes": "installed"} and content["version"].startswith("v2.12.0")
    assert "etag" not in health.headers
    for path, accept in (("health", "text/plain"), ("metrics", "*/*")):
        text = kupo.ask(f"/kupo/{path}", Accept=accept)
        assert text.headers["content-type"].startswith("text/plain")
        assert f"kupo_most_recent_checkpoint  {float(blocks()[-1].slot or 0)}\n" in text.text
    assert kupo.ask("/kupo/metrics").status_code == 200
    assert kupo.ask("/kupo/metrics", Accept="application/json").json()["most_recent_checkpoint"] == blocks()[-1].slot


def test_patterns(kupo: Api) -> None:
    for path in ("/patterns", "/patterns/*", "/patterns/*/*"):
        assert kupo.ask(f"/kupo{path}").json() == ["*"]
    assert kupo.ask("/kupo/patterns/zz").status_code == 400
    for method in ("PUT", "DELETE"):
        refused = kupo.ask("/kupo/patterns/*", method)
        assert refused.status_code == 400 and "everything is indexed" in refused.json()["hint"]


def test_methods(kupo: Api) -> None:
    assert kupo.ask("/kupo/matches", "POST").status_code == kupo.ask("/kupo/health", "PUT").status_code == 406
    assert kupo.ask("/kupo/nothing", "POST").status_code == 404
    headers = {"Origin": "https://wallet.example", "Access-Control-Request-Method": "GET"}
    preflight = kupo.ask("/kupo/matches", "OPTIONS", **headers)
    assert preflight.status_code == 200 and "GET" in preflight.headers["access-control-allow-methods"]
    head = kupo.ask("/kupo/matches?unspent", "HEAD")
    assert (head.status_code, head.content) == (200, b"") and head.headers["etag"]


def test_unchanged_answers_are_304(kupo: Api) -> None:
    path, tag = "/kupo/matches?unspent", blocks()[-1].hash.hex()
    for _ in range(2):
        same = kupo.ask(path, **{"If-None-Match": tag})
        assert (same.status_code, same.content) == (304, b"")
    assert kupo.ask(path, **{"If-None-Match": "other"}).status_code == 200
    assert kupo.ask("/kupo/matches/zz", **{"If-None-Match": tag}).status_code == 400
    assert kupo.ask("/kupo/health", **{"If-None-Match": tag}).status_code != 304


def test_pages(kupo: Api) -> None:
    for flag in ("unspent", "spent", "order=oldest_first"):
        everything = ask(kupo, f"/matches?{flag}")
        assert pages(kupo, f"{flag}&limit=17") == everything and len(everything) > 40
        first = kupo.ask(f"/kupo/matches?{flag}&limit=17")
        assert len(first.json()) == 17
    cursor = first.headers["x-next-cursor"]
    ask(kupo, f"/matches?unspent&limit=17&cursor={cursor}", 400)  # the cursor of another list


def pages(api: Api, query: str) -> list[Any]:
    """Return a list page by page."""
    found, more = list[Any](), ""
    while True:
        answer = api.ask(f"/kupo/matches?{query}{more}")
        found += answer.json()
        if "x-next-cursor" not in answer.headers:
            return found
        more = f"&cursor={answer.headers['x-next-cursor']}"


def test_pages_while_blocks_come_and_go() -> None:
    """A page that was written at an earlier block is returned only if it is still the same."""
    chain = blocks()
    with short_folder() as folder, served(folder, before(), *chain[:40]) as api:
        for block in [*chain[40:46], chain[43], *chain[44:48]]:
            back = block is chain[43] and api.ask("/kupo/checkpoints").json()[0] != point_of(chain[42])
            feed(api, Rollback(to=RollbackPoint(hash=block.hash)) if back else block)
            live = api.ask("/kupo/matches?unspent").json()
            assert pages(api, "unspent&limit=9") == live
            assert pages(api, "unspent&limit=9&order=oldest_first") == live[::-1]
            assert pages(api, f"unspent&limit={len(live)}") == live


def test_pages_of_a_range_continue_after_a_new_block() -> None:
    """A range without an end is the same list at every tip."""
    chain = blocks()
    slot, other = chain[20].slot, chain[21].slot
    with short_folder() as folder, served(folder, before(), *chain[:40]) as api:
        nexts = dict[str, str]()
        for name in ("created_after", "spent_after"):
            path = f"/kupo/matches?{name}={slot}&order=oldest_first&limit=3"
            nexts[name] = f"{path}&cursor={api.ask(path).headers['x-next-cursor']}"
        pages_before = [txids(api.ask(path)) for path in nexts.values()]
        feed(api, chain[40])
        assert [txids(api.ask(path)) for path in nexts.values()] == pages_before
        assert api.ask(nexts["created_after"].replace(str(slot), str(other))).status_code == 400


def txids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["transaction_id"] for each in answer.json()]


def test_answers_with_unspent_outputs_follow_the_chain() -> None:
    """An answer of an earlier block is returned only if none of its outputs was spent and none was added."""
    chain, first = blocks(), 20
    moving, losing = list[bytes](), set[bytes]()
    for block in chain[first:45]:
        paid = [output.address for tx in block.txs if tx.valid for output in tx.outputs]
        spent = [coins()[each].output.address for tx in block.txs for each in tx.inputs if each in coins()]
        moving, losing = [*moving, *paid, *spent], losing | ({*spent} - {*paid})
    owners = [*sorted({*moving}, key=moving.count)[-2:], *sorted(losing)]
    coin = some(lambda coin: not coin.spend and coin.output.assets)
    policy, holder = coin.output.assets[0][0], coin.output.address
    kept: dict[str, Kept] = {
        f"{CODEC.write(owner)}?unspent": lambda coin, owner=owner: coin.output.address == owner  # type: ignore[misc]
        for owner in owners
    }
    path = f"{CODEC.write(holder)}?unspent&policy_id={policy.hex()}"
    kept[path] = lambda coin: coin.output.address == holder and held(coin, policy)
    with short_folder() as folder, served(folder, before(), *chain[:first]) as api:
        for n in [*range(first, 45), 40, *range(41, 45)]:
            back = n == 40 and api.ask("/kupo/checkpoints").json()[0] == point_of(chain[44])
            feed(api, Rollback(to=RollbackPoint(hash=chain[n].hash)) if back else chain[n])
            now = coins_of(chain[: n + 1], before()).values()
            for path, each in kept.items():
                found = [coin for coin in now if each(coin) and not coin.spend]
                found.sort(key=lambda coin: (coin.block.height, coin.place, coin.number))
                wanted = [match_of(coin, CODEC.write) for coin in found]
                assert api.ask(f"/kupo/matches/{path}&order=oldest_first").json() == wanted, (n, path)
                assert api.ask(f"/kupo/matches/{path}").json() == wanted[::-1]
                page = api.ask(f"/kupo/matches/{path}&limit=3")
                assert page.json() == wanted[::-1][:3] and ("x-next-cursor" in page.headers) == (len(wanted) > 3)


def test_outputs_far_from_each_other() -> None:
    """They are read one by one, those next to each other together: the matches are the same, in either order."""
    owner, other = b"\x60" + b"\x01" * 28, b"\x60" + b"\x02" * 28
    datum = bytes.fromhex("d87980")
    rich = Output(owner, 7, [(b"\x03" * 28, b"x", 5)], inline_datum=datum)
    made, spent = list[BlockApplied](), list[Tx]()
    for height in range(1, 7):
        name = height.to_bytes(32, "big")
        outputs = [Output(other, 1)] * 300 + [rich] + [Output(owner, height)] * (height % 2)
        spent = [Tx(b"\x05" * 32, [((2).to_bytes(32, "little"), 300)], [Output(other, 7)])] if height == 5 else []
        txs = [Tx(height.to_bytes(32, "little"), [], outputs), *spent]
        before = made[-1].hash if made else None
        made.append(BlockApplied(height=height, hash=name, slot=height * 20, prev_hash=before, txs=txs))
    found = [coin for coin in coins_of(made, GenesisOutputs(outputs=[])).values() if coin.output.address == owner]
    assert len(found) == 9 and sum(coin.spend is not None for coin in found) == 1
    with short_folder() as folder, served(folder, *made[:3]) as api:
        whole = f"/kupo/matches/{CODEC.write(owner)}?unspent&limit=5&order=oldest_first"
        answer = api.ask(whole)
        assert len(answer.json()) == 5 and "x-next-cursor" not in answer.headers
        feed(api, made[3])
        again = api.ask(whole)
        assert again.content == answer.content and "x-next-cursor" in again.headers  # no longer the last one
        feed(api, *made[4:])
        for query, kept in (("", found), ("unspent&", [coin for coin in found if not coin.spend])):
            wanted = [match_of(coin, CODEC.write) for coin in kept]
            path = f"/kupo/matches/{CODEC.write(owner)}?{query}order"
            assert api.ask(f"{path}=oldest_first").json() == wanted
            assert api.ask(f"{path}=most_recent_first").json() == wanted[::-1]


def test_a_cursor_of_a_rolled_back_block_is_refused() -> None:
    chain = blocks()
    with short_folder() as folder, served(folder, *chain[:50]) as api:
        first = api.ask("/kupo/matches?limit=5")
        cursor = first.headers["x-next-cursor"]
        everything = api.ask("/kupo/matches?unspent").json()
        feed(api, Rollback(to=RollbackPoint(hash=chain[44].hash)))
        removed = api.ask(f"/kupo/matches?limit=5&cursor={cursor}")
        assert removed.status_code == 400
        assert removed.json()["details"]["ancestor"] == point_of(chain[44])
        assert api.ask("/kupo/matches?unspent").json() != everything
        feed(api, *chain[45:50])
        assert api.ask("/kupo/matches?unspent").json() == everything
        assert api.ask(f"/kupo/matches?limit=5&cursor={cursor}").status_code == 200


def test_an_own_listener_with_token_and_origins() -> None:
    port, listen = own_listener()
    http = {"token": "secret", "cors_origins": ["https://wallet.example"]}
    with short_folder() as folder, served(folder, *blocks()[:3], kupo={"listen": listen}, http=http) as api:
        with Web(port) as web:
            assert web.ask("/health").status_code == 401
            token = {"Authorization": "Bearer secret", "Origin": "https://wallet.example"}
            found = web.ask("/v1/checkpoints", **token)
            assert found.json()[0] == point_of(blocks()[2])
            assert found.headers["access-control-allow-origin"] == "https://wallet.example"
            stranger = web.ask("/checkpoints", **token | {"Origin": "https://other.example"})
            assert "access-control-allow-origin" not in stranger.headers
            assert web.ask("/api/v1/tip", **token).status_code == 404
        assert api.ask("/kupo/checkpoints", **token).json() == found.json()


def test_missing_indexes_and_facades() -> None:
    index = {"payment_credential": True, "address_hash": False}
    coin = some(lambda coin: stake_credential(coin.output.address))
    address = coin.output.address
    with short_folder() as folder, served(folder, utxo={"index": index}, blockfrost={"enabled": False}) as api:
        assert api.ask("/blockfrost/preview/api/v0/").json()["error"] == "unknown_path"
        for path in (f"*/{address[29:57].hex()}", f"{'00' * 28}.*"):
            refused = api.ask(f"/kupo/matches/{path}")
            assert refused.status_code == 503 and "utxo.index." in refused.json()["hint"]
        for path, kept in (
            (CODEC.write(address), lambda other: other.output.address == address),
            (f"{address[1:29].hex()}/{address[29:57].hex()}", lambda other: other.output.address == address),
        ):
            compare(api, f"/matches/{path}", kept)


PIECES = st.sampled_from(
    ["*", "/", "@", ".", "%2F", "{1}", "00" * 28, "ff" * 32, "addr_test1", "stake", "%00", "é", ""]
)
NAMES = st.sampled_from(
    ["spent", "unspent", "order", "created_after", "policy_id", "limit", "cursor", "resolve_hashes"]
)
VALUES = st.sampled_from(["", "=", "=1", "=99999999999999999999", "=1.00", "=x", f"={'00' * 28}", "=%FF"])


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES, max_size=5), st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_random_paths(kupo: Api, path: list[str], query: list[tuple[str, str]]) -> None:
    given = "&".join(name + value for name, value in query)
    answer = kupo.ask(f"/kupo/matches/{''.join(path)}?{given}")
    assert answer.status_code in (200, 400, 404, 503), answer.text
    content = json.loads(answer.content)
    assert isinstance(content, list) if answer.status_code == 200 else content["hint"]


def test_the_commands_of_the_documentation(kupo: Api) -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("curl ")]
    assert len(commands) >= 4
    for command in commands:
        path = command[-1].removeprefix("http://127.0.0.1:8410")
        if "-d" in command:
            transport = httpx.HTTPTransport(uds=str(kupo.daemon.folder / "http"))
            with httpx.Client(transport=transport, base_url="http://localhost") as client:
                answer = client.post(path, content=command[command.index("-d") + 1])
        else:
            answer = kupo.ask(path)
        assert answer.status_code in (200, 503 if path.endswith("/health") else 200) and answer.json(), command

"""Cardano: every kind of address to text and back, by vectors of others and by bytes that chains really carry."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from real_data import document, every

from formats import base58, bech32
from handlers.addresses import AddressError, Credentials, Kind, Part, Reason, codec
from handlers.addresses.cardano import Cardano, _write
from handlers.addresses.plain import NO_CREDENTIALS
from handlers.addresses.shelley import Pointer, pointer

MAINNET = codec("cardano", "mainnet")
PREPROD = codec("cardano", "preprod")
TEST_NETWORKS = ["preprod", "preview", "sanchonet", "testnet", "private-7"]

KEY = bytes.fromhex("9493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e")
STAKE_KEY = bytes.fromhex("337b62cfff6403a06a3acbc34f8c46003c69fe79a3628cefa9c47251")
OTHER_KEY = bytes.fromhex("adec17c2784d97ed403c011ab73aa32bdf74ee10ce44258bf72c256b")
SCRIPT = bytes.fromhex("c37b1b5dc0669f1d3c61a6fddb2e8fde96be87b881c60bce8e8d542f")
POINTER = bytes.fromhex("8198bd431b03")
STAKE_KEY_ADDRESS = "stake1uyehkck0lajq8gr28t9uxnuvgcqrc6070x3k9r8048z8y5gh6ffgw"
STAKE_SCRIPT_ADDRESS = "stake178phkx6acpnf78fuvxn0mkew3l0fd058hzquvz7w36x4gtcccycj5"


class Vector(NamedTuple):
    """A test vector of CIP 19; `rest` are the bytes after the header."""

    kind: int
    mainnet: str
    test: str
    rest: bytes
    credentials: Credentials
    stake: str | None


def vectors(first: str) -> list[list[str]]:
    lines = (Path(__file__).parent / "vectors" / "cardano_addresses.txt").read_text().splitlines()
    return [rest for word, *rest in map(str.split, lines) if word == first]


def cip_19(kind: int) -> Vector:
    [(mainnet, test)] = vectors(str(kind))
    owner, kind_of = ((SCRIPT, "script") if kind & 1 else (KEY, "key")), {KEY: "key", STAKE_KEY: "key"}
    if kind > 8:
        own = SCRIPT if kind & 1 else STAKE_KEY
        found = Credentials(stake=own, stake_kind="script" if kind & 1 else "key")
        return Vector(kind, mainnet, test, own, found, mainnet)
    stake = (STAKE_KEY if kind < 2 else SCRIPT) if kind < 4 else None
    tail = stake or (POINTER if kind < 6 else b"")
    text = None if stake is None else STAKE_KEY_ADDRESS if kind < 2 else STAKE_SCRIPT_ADDRESS
    credentials = Credentials(*owner, stake, stake and kind_of.get(stake, "script"))  # type: ignore[arg-type]
    return Vector(kind, mainnet, test, owner[0] + tail, credentials, text)


CIP_19 = [cip_19(kind) for kind in (*range(8), 14, 15)]
PAYMENT, STAKE = CIP_19[:8], CIP_19[8:]
BYRON = [(text, raw, None if magic == "-" else int(magic)) for text, raw, magic in vectors("byron")]
TRAILING = [(text, raw) for text, raw in vectors("trailing")]
# A pointer of numbers that go on for more than a hundred bytes, minted on a test network (pallas).
ENDLESS_POINTER = bytes.fromhex(
    "40c19d7d05e90eeb6394b53313fe79d47077de33068c6b813bbe5c9d56"
    + "81"
    + "ff" * 163
    + "7f"
    + ("81" + "ff" * 8 + "7f") * 2
)
LARGEST = 2**64 - 1


def refusal(text: str, network: str = "mainnet") -> AddressError:
    with pytest.raises(AddressError) as caught:
        codec("cardano", network).read(text)
    return caught.value


def bech32_of(prefix: str, raw: bytes) -> str:
    return bech32.encode(prefix, *bech32.symbols(raw))


def byron(attributes: dict[int, bytes], root: bytes = bytes(28), kind: int = 0, crc: int | None = None) -> bytes:
    payload = cbor2.dumps([root, attributes, kind])
    return cbor2.dumps([cbor2.CBORTag(24, payload), crc32(payload) if crc is None else crc])


def varuint(number: int, zeros: int = 0) -> bytes:
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(number & 0x7F | 0x80)
    return b"\x80" * zeros + bytes(reversed(digits))


hashes = st.binary(min_size=28, max_size=28)
trailing = st.one_of(st.just(b""), st.binary(max_size=60))
varuints = st.builds(varuint, st.integers(0, 2**80), st.integers(0, 3))
pointers = st.lists(varuints, min_size=3, max_size=3).map(b"".join)
network_ids = st.sampled_from((0, 1))


@st.composite
def shelley_addresses(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 7))
    rest = draw(hashes)
    if kind < 6:
        rest += draw(hashes if kind < 4 else pointers)
    return bytes((kind << 4 | draw(network_ids),)) + rest + draw(trailing)


magics = st.one_of(st.none(), st.integers(0, 2**32 - 1).filter(lambda magic: magic != 764_824_073))


@st.composite
def byron_addresses(draw: st.DrawFn) -> tuple[bytes, int | None]:
    magic = draw(magics)
    attributes = draw(st.dictionaries(st.sampled_from((1, 3, 200)), st.binary(max_size=40), max_size=2))
    if magic is not None:
        attributes[2] = cbor2.dumps(magic)
    return byron(attributes, draw(hashes), draw(st.sampled_from((0, 2)))), magic


def own(raw: bytes) -> Cardano:
    """Return the codec of the network that the header names."""
    found = MAINNET if raw[0] & 1 else PREPROD
    assert isinstance(found, Cardano)
    return found


@pytest.mark.parametrize("vector", CIP_19, ids=lambda vector: str(vector.kind))
def test_utxo_098_cip_19(vector: Vector) -> None:
    for codec_, text, network_id in ((MAINNET, vector.mainnet, 1), (PREPROD, vector.test, 0)):
        raw = bytes((vector.kind << 4 | network_id,)) + vector.rest
        assert codec_.write(raw) == text
        assert codec_.credentials(raw) == vector.credentials
        assert pointer(raw) == (Pointer(2498243, 27, 3) if vector.kind in (4, 5) else None)
        if vector.kind < 8:
            assert codec_.read(text) == codec_.read(text.upper()) == raw
        else:
            assert codec_.read_credential(text, "stake") == vector.rest
    assert MAINNET.stake(bytes((vector.kind << 4 | 1,)) + vector.rest) == vector.stake


def test_utxo_098_stake_addresses_on_test_networks() -> None:
    found = {PREPROD.stake(bytes((vector.kind << 4,)) + vector.rest) for vector in CIP_19}
    assert found == {None, STAKE[0].test, STAKE[1].test}


@pytest.mark.parametrize(("text", "raw", "magic"), BYRON)
def test_byron_vectors(text: str, raw: str, magic: int | None) -> None:
    for network in ("mainnet", *TEST_NETWORKS):
        cardano = codec("cardano", network)
        assert cardano.write(bytes.fromhex(raw)) == text
        assert cardano.credentials(bytes.fromhex(raw)) == NO_CREDENTIALS
        assert cardano.stake(bytes.fromhex(raw)) is None
        if (network == "mainnet") == (magic is None):
            assert cardano.read(text).hex() == raw
        else:
            assert refusal(text, network).reason == "another network"


@pytest.mark.parametrize(("text", "raw"), TRAILING)
def test_utxo_099_trailing_bytes_are_kept(text: str, raw: str) -> None:
    address = bytes.fromhex(raw)
    assert MAINNET.read(text) == address
    assert MAINNET.write(address) == text
    assert MAINNET.credentials(address).payment == address[1:29]
    stake = address[29:57] if address[0] == 0x01 else None
    assert MAINNET.credentials(address).stake == stake
    assert MAINNET.stake(address) == (None if stake is None else bech32_of("stake", b"\xe1" + stake))


def test_utxo_099_pointer_beyond_64_bits() -> None:
    assert pointer(ENDLESS_POINTER) == Pointer(LARGEST, LARGEST, LARGEST)
    assert PREPROD.credentials(ENDLESS_POINTER) == Credentials(ENDLESS_POINTER[1:29], "key")
    text = PREPROD.write(ENDLESS_POINTER)
    assert text.startswith("addr_test1g")
    assert PREPROD.read(text) == ENDLESS_POINTER
    header = b"\x41" + KEY
    assert pointer(header + varuint(2**64 - 1) + b"\x00\x01") == Pointer(LARGEST, 0, 1)
    assert pointer(header + varuint(2**64) + varuint(2**64 + 1) + varuint(2**200)) == Pointer(LARGEST, LARGEST, LARGEST)
    assert pointer(header + varuint(5, zeros=40) + b"\x00\x00" + b"trailing") == Pointer(5, 0, 0)


@pytest.mark.parametrize(("text", "raw", "magic"), BYRON)
def test_utxo_100_one_wrong_character_in_byron(text: str, raw: str, magic: int | None) -> None:
    network = "mainnet" if magic is None else "preprod"
    for place, right in enumerate(text):
        for wrong in base58.ALPHABET.replace(right, ""):
            error = refusal(text[:place] + wrong + text[place + 1 :], network)
            assert error.reason in ("bad checksum", "malformed")
    assert refusal(text[:-1] + wrong, network).reason == "bad checksum"  # the end is the CRC itself
    assert refusal("1" + text, network).reason == "malformed"
    assert refusal(text[:-1], network).reason == "malformed"


def test_addresses_of_real_blocks() -> None:
    blocks = [block for path in every("expected/cardano-single-blocks.json.xz") for block in document(path)]
    seen = set()
    for output in (output for block in blocks for tx in block["txs"] for output in tx["outputs"]):
        raw = bytes.fromhex(output["address"])
        assert MAINNET.write(raw) == output["bech32"]
        read = [cardano for cardano in (MAINNET, PREPROD) if _reads(cardano, output["bech32"], raw)]
        assert len(read) == 1
        seen.add((raw[0] >> 4, read[0].network))
    assert {kind for kind, _ in seen} == {0, 1, 3, 6, 7, 8}
    assert len(seen) == 12


def _reads(cardano: object, text: str, raw: bytes) -> bool:
    assert isinstance(cardano, Cardano)
    try:
        assert cardano.read(text) == raw
    except AddressError as error:
        assert error.reason == "another network"
        return False
    return True


@given(shelley_addresses())
@example(b"\x60" + KEY + bytes(16_384 - 29))
def test_round_trip_of_every_kind(raw: bytes) -> None:
    cardano = own(raw)
    text = cardano.write(raw)
    assert text.startswith("addr1" if raw[0] & 1 else "addr_test1")
    assert cardano.read(text) == cardano.read(text.upper()) == cardano.read(raw.hex()) == raw
    assert codec("cardano", "preview").write(raw) == MAINNET.write(raw) == text


@given(shelley_addresses(), st.sampled_from(TEST_NETWORKS))
def test_credentials_and_stake_address(raw: bytes, network: str) -> None:
    cardano = own(raw)
    kind = raw[0] >> 4
    payment_kind: Kind = "script" if kind % 2 else "key"
    stake = raw[29:57] if kind < 4 else None
    stake_kind: Kind | None = None if stake is None else "key" if kind < 2 else "script"
    assert cardano.credentials(raw) == (raw[1:29], payment_kind, stake, stake_kind)
    text = cardano.write(raw)
    assert cardano.read_credential(text) == raw[1:29]
    address = cardano.stake(raw)
    if stake is None:
        assert address is None
        with pytest.raises(
            AddressError, match=r"^another kind: neither a stake credential nor an address that has one"
        ):
            cardano.read_credential(text, "stake")
        return
    assert address is not None
    assert address.startswith("stake1" if raw[0] & 1 else "stake_test1")
    assert cardano.read_credential(address, "stake") == cardano.read_credential(text, "stake") == stake
    header = (0xE0 if stake_kind == "key" else 0xF0) | raw[0] & 1
    assert cardano.write(bytes((header,)) + stake) == address
    assert cardano.stake(bytes((header,)) + stake) == address


@given(byron_addresses(), st.sampled_from(["mainnet", *TEST_NETWORKS]))
@example((byron({2: cbor2.dumps(764_824_073)}), None), "mainnet")
@example((byron({1: b"x" * 400}), None), "mainnet")
@example((byron({2: cbor2.dumps(2**64 - 1)}), 2**64 - 1), "private-7")
def test_round_trip_of_byron(made: tuple[bytes, int | None], network: str) -> None:
    raw, magic = made
    cardano = codec("cardano", network)
    text = cardano.write(raw)
    assert base58.decode(text) == raw
    assert cardano.read(raw.hex()) == raw
    if (magic is None) == (network == "mainnet"):
        assert cardano.read(text) == raw
    else:
        theirs = "mainnet" if magic is None else f"a test network (magic {magic})"
        what = f"another network: an address of {theirs}, but chain.network is {network}"
        assert str(refusal(text, network)) == what


@given(
    st.one_of(st.binary(min_size=1, max_size=90), st.binary(min_size=20, max_size=60).map(lambda raw: b"\x82" + raw))
)
@example(b"\x61" + KEY)
@example(b"\xe1" + KEY)
@example(b"\x00")
def test_any_bytes_round_trip(raw: bytes) -> None:
    text = MAINNET.write(raw)
    assert MAINNET.read(raw.hex()) == raw
    try:
        assert MAINNET.read(text) == raw
    except AddressError as error:
        if error.reason == "another network":
            assert PREPROD.read(text) == raw
        else:
            assert error.reason == "another kind"
            assert raw[0] >> 4 in (14, 15)


@given(st.text(max_size=100))
@example("addr1")
@example("stake1")
@example("\u0130addr1")
def test_any_text_is_read_or_refused(text: str) -> None:
    for part in ("payment", "stake"):
        try:
            MAINNET.read_credential(text, part)
        except AddressError as error:
            assert str(error).startswith(error.reason)
    try:
        assert MAINNET.read(text).hex() == text.lower()
    except AddressError as error:
        assert str(error).startswith(error.reason)


OTHER_BYTES = [
    *(b"", b"\x01", b"\x61" + KEY[1:], b"\x01" + KEY + STAKE_KEY[1:], b"\x31" + KEY, b"\x62" + KEY, b"\x41" + KEY),
    *(b"\x0f" + KEY + STAKE_KEY, b"\x51" + KEY + b"\x01\x02", b"\x51" + KEY + b"\x01\x02\x83", b"\x81" + KEY),
    *(b"\x91" + KEY, b"\xd1" + KEY, b"\xe1" + KEY[1:], b"\xe1" + KEY + b"\x00", b"\xe2" + KEY),
    *(b"\xf1" + KEY + STAKE_KEY, b"\x61" + KEY + bytes(16_384 - 28)),
]


@pytest.mark.parametrize("raw", OTHER_BYTES, ids=lambda raw: f"{raw[:1].hex()}-{len(raw)}")
def test_other_bytes_are_hex(raw: bytes) -> None:
    assert MAINNET.write(raw) == raw.hex()
    if raw:
        assert MAINNET.read(raw.hex()) == raw


GOOD_BYRON = byron({1: b"path", 2: cbor2.dumps(1)})
PAYLOAD = cbor2.loads(GOOD_BYRON)[0].value


WRONG_FIELDS: list[list[Any]] = [[{}], [{}, 0, 0], [[], 0], [{}, b""], [{2: 1}, 0]]


def embedded(payload: bytes) -> bytes:
    return cbor2.dumps([cbor2.CBORTag(24, payload), crc32(payload)])


@pytest.mark.parametrize(
    "raw",
    [
        *(byron({}, crc=0), GOOD_BYRON + b"\x00", GOOD_BYRON[:-1], GOOD_BYRON[:10], GOOD_BYRON[:4], b"\x82\xd8"),
        *(b"\x98\x02" + GOOD_BYRON[1:], cbor2.dumps([cbor2.CBORTag(25, PAYLOAD), crc32(PAYLOAD)])),
        *(cbor2.dumps([PAYLOAD, crc32(PAYLOAD)]), cbor2.dumps([cbor2.CBORTag(24, PAYLOAD), crc32(PAYLOAD), 0])),
        *(b"\x81" + GOOD_BYRON[1:], b"\x83" + GOOD_BYRON[1:], GOOD_BYRON[:-5] + b"\x1c" + bytes(12) + GOOD_BYRON[-4:]),
        *(GOOD_BYRON[:-5] + b"\x1f" + bytes(124) + GOOD_BYRON[-4:], b"\x82\xd8\x18\x5f\x41\x00\xff\x00"),
        *(cbor2.dumps([cbor2.CBORTag(24, PAYLOAD), str(crc32(PAYLOAD))]), embedded(PAYLOAD + b"\x00")),
        *(embedded(PAYLOAD[:-1]), embedded(b"")),
        *(embedded(cbor2.dumps([bytes(size), {}, 0])) for size in (27, 29)),
        *(embedded(cbor2.dumps([bytes(28), *rest])) for rest in WRONG_FIELDS),
        embedded(cbor2.dumps([bytes(28), {"2": b"\x01"}, 0])),
        *(embedded(cbor2.dumps([bytes(28), {2: magic}, 0])) for magic in (b"", b"\x01\x02", b"\x19\x01", b"\x41\x01")),
        embedded(b"\x83\x58\x1c" + bytes(28) + b"\xbf\xff\x00"),
        embedded(b"\x83\x58\x1c" + bytes(28) + b"\xbb" + b"\xff" * 8 + b"\x00"),
        embedded(b"\x83\x58\x1c" + bytes(28) + b"\xa1\x02\x5b" + b"\xff" * 8 + b"\x00"),
        byron({1: b"x" * 480}),
    ],
)
def test_malformed_byron_addresses_are_hex(raw: bytes) -> None:
    assert MAINNET.write(raw) == PREPROD.write(raw) == raw.hex()
    assert refusal(base58.encode(raw)).reason == ("bad checksum" if raw == byron({}, crc=0) else "malformed")


@pytest.mark.parametrize(
    ("text", "part", "credential"),
    [
        ("addr_vk1w0l2sr2zgfm26ztc6nl9xy8ghsk5sh6ldwemlpmp9xylzy4dtf7st80zhd", "payment", KEY),
        ("stake_vk1px4j0r2fk7ux5p23shz8f3y5y2qam7s954rgf3lg5merqcj6aetsft99wu", "stake", STAKE_KEY),
        ("script1cda3khwqv60360rp5m7akt50m6ttapacs8rqhn5w342z7r35m37", "payment", SCRIPT),
        ("script1cda3khwqv60360rp5m7akt50m6ttapacs8rqhn5w342z7r35m37", "stake", SCRIPT),
        ("SCRIPT1CDA3KHWQV60360RP5M7AKT50M6TTAPACS8RQHN5W342Z7R35M37", "payment", SCRIPT),
        ("addr_vk1x7da0l25j04my8sej5ntrgdn38wmshxhplxdfjskn07ufavsgtkqn5hljl", "payment", OTHER_KEY),
        ("addr_vkh14hkp0sncfkt76spuqydtww4r900hfmsseezztzlh9sjkkvjxtmr", "payment", OTHER_KEY),
        ("stake_vkh14hkp0sncfkt76spuqydtww4r900hfmsseezztzlh9sjkkjx6d7q", "stake", OTHER_KEY),
        (bech32_of("addr_shared_vkh", KEY), "payment", KEY),
        (bech32_of("stake_shared_vkh", KEY), "stake", KEY),
        *((KEY.hex(), "payment", KEY), (KEY.hex().upper(), "stake", KEY), (CIP_19[0].mainnet, "payment", KEY)),
        *((CIP_19[0].mainnet, "stake", STAKE_KEY), (STAKE_KEY_ADDRESS, "stake", STAKE_KEY)),
        (STAKE_SCRIPT_ADDRESS, "stake", SCRIPT),
    ],
)
def test_credentials_in_text(text: str, part: Part, credential: bytes) -> None:
    assert MAINNET.read_credential(text, part) == credential
    if not text.startswith(("addr1", "stake1")):
        assert PREPROD.read_credential(text, part) == credential


@pytest.mark.parametrize("prefix", ["addr", "addr_shared", "stake", "stake_shared"])
def test_credentials_of_keys(prefix: str) -> None:
    key, chain_code = bytes(range(32)), bytes(range(32, 64))
    part: Part = "stake" if prefix.startswith("stake") else "payment"
    digest = blake2b(key, digest_size=28).digest()
    assert MAINNET.read_credential(bech32_of(f"{prefix}_vk", key), part) == digest
    assert MAINNET.read_credential(bech32_of(f"{prefix}_xvk", key + chain_code), part) == digest


@pytest.mark.parametrize(
    ("text", "part", "reason"),
    [
        *(("", "payment", "malformed"), ("ab" * 27, "payment", "malformed"), ("ab" * 29, "payment", "malformed")),
        ("61" + KEY.hex(), "payment", "malformed"),
        *(("61" * 32, "payment", "malformed"), (KEY.hex()[:-1], "payment", "malformed")),
        (bech32_of("addr_vkh", KEY[1:]), "payment", "malformed"),
        (bech32_of("addr_vk", KEY), "payment", "malformed"),
        (bech32_of("addr_xvk", bytes(32)), "payment", "malformed"),
        (bech32_of("script", bytes(32)), "payment", "malformed"),
        (bech32_of("stake_vkh", KEY), "payment", "another kind"),
        (bech32_of("addr_vkh", KEY), "stake", "another kind"),
        (bech32_of("addr_shared_xvk", bytes(64)), "stake", "another kind"),
        (bech32_of("addr_vkh", KEY)[:-1] + "b", "payment", "malformed"),
        (bech32_of("addr_vkh", KEY)[:-2] + "qq", "payment", "bad checksum"),
        (bech32_of("Addr_vkh".lower(), KEY).capitalize(), "payment", "malformed"),
        (bech32.encode("addr_vkh", *bech32.symbols(KEY), bech32.BECH32M), "payment", "bad checksum"),
        (bech32_of("pool", KEY), "payment", "unknown prefix"),
        (bech32_of("drep_vkh", KEY), "stake", "unknown prefix"),
        (bech32_of("addr_xsk", bytes(96)), "payment", "unknown prefix"),
        (STAKE_KEY_ADDRESS, "payment", "another kind"),
        (STAKE[0].test, "stake", "another network"),
        (CIP_19[0].test, "payment", "another network"),
        (bech32_of("stake", b"\xe0" + KEY), "stake", "malformed"),
        (bech32_of("stake", b"\x61" + KEY), "stake", "malformed"),
        (bech32_of("stake", b"\xe1" + KEY + b"\x00"), "stake", "malformed"),
        (CIP_19[6].mainnet, "stake", "another kind"),
        (CIP_19[4].mainnet, "stake", "another kind"),
        (BYRON[1][0], "payment", "another kind"),
        (BYRON[0][0], "payment", "another network"),
    ],
)
def test_malformed_credentials_are_refused(text: str, part: Part, reason: Reason) -> None:
    with pytest.raises(AddressError) as caught:
        MAINNET.read_credential(text, part)
    assert caught.value.reason == reason


@pytest.mark.parametrize("vector", CIP_19, ids=lambda vector: str(vector.kind))
def test_addresses_of_another_network_or_kind_are_refused(vector: Vector) -> None:
    for text, where in ((vector.mainnet, "mainnet"), (vector.test, "a test network")):
        for network in ("mainnet", *TEST_NETWORKS):
            if vector.kind > 8:
                what = "another kind: a stake address where a payment address is expected"
            elif (text is vector.mainnet) != (network == "mainnet"):
                what = f"another network: an address of {where}, but chain.network is {network}"
            else:
                continue
            assert str(refusal(text, network)) == what


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("", "malformed", "no text"),
        ("z" * 40_000, "malformed", "40000 characters are too many for an address"),
        ("z" * 1_500, "malformed", "1500 characters are too many for base58"),
        ("hello", "malformed", "'l', character 3, is not a digit of base58"),
        ("0123", None, ""),
        ("022", "malformed", "'0', character 1"),
        (CIP_19[0].mainnet[:-1] + "q", "bad checksum", "wrong, missing or too many"),
        (CIP_19[0].mainnet.replace("q", "b", 1), "malformed", "'b' is not a character of bech32"),
        (CIP_19[0].mainnet.replace("addr1", "addr_test1"), "bad checksum", ""),
        (CIP_19[0].mainnet.replace("addr1q", "addr1Q"), "malformed", "mixed case"),
        (CIP_19[0].mainnet.capitalize(), "malformed", "mixed case"),
        (CIP_19[0].mainnet + "\n", "malformed", "not printable ASCII"),
        (" " + CIP_19[0].mainnet, "malformed", "a blank"),
        ("addr1qqqq", "malformed", "cut off"),
        ("addr", "malformed", "no prefix and separator"),
        ("zzzz", "malformed", "not a Byron address"),
        (bech32.encode("addr", *bech32.symbols(b"\x61" + KEY), bech32.BECH32M), "bad checksum", "bech32m"),
        ("bc1qvyq0cc6rahyvsazfdje0twl7ez82ndmuac2lhv", "unknown prefix", "bc is none of addr, addr_shared_vk"),
        ("script1cda3khwqv60360rp5m7akt50m6ttapacs8rqhn5w342z7r35m37", "another kind", "a credential (script)"),
        (bech32_of("addr_vkh", KEY), "another kind", "a credential (addr_vkh) where an address is expected"),
        # CIP 19's own example in its table: the prefix says mainnet, the header a test network
        ("addr1vpu5vlrf4xkxv2qpwngf6cjhtw542ayty80v8dyr49rf5eg0yu80w", "malformed", "the bytes behind addr"),
        (bech32_of("addr", b"\x61" + KEY[1:]), "malformed", "cut off"),
        (bech32_of("addr", b"\xe1" + KEY), "malformed", "of another kind"),
        (bech32_of("addr", b"\x62" + KEY), "malformed", "or network"),
        (bech32_of("addr", b""), "malformed", ""),
        (bech32_of("addr", bytes.fromhex(BYRON[2][1])), "malformed", ""),
        (base58.encode(b"\x61" + KEY), "malformed", "not a Byron address"),
        (base58.encode(byron({}, crc=1)), "bad checksum", "CRC"),
        (bech32_of("addr", b"\x61" + KEY + bytes(16_384)), "malformed", ""),
    ],
)
def test_refusals_have_a_reason(text: str, reason: Reason | None, words: str) -> None:
    if reason is None:
        assert MAINNET.read(text).hex() == text
        return
    error = refusal(text)
    assert error.reason == reason
    assert str(error).startswith(f"{reason}: ")
    assert words in str(error)


@given(shelley_addresses(), st.data())
def test_one_wrong_character_is_refused(raw: bytes, data: st.DataObject) -> None:
    cardano = own(raw)
    text = cardano.write(raw)
    place = data.draw(st.integers(text.rindex("1") + 1, len(text) - 1))
    other = data.draw(st.sampled_from(bech32.CHARSET.replace(text[place], "")))
    with pytest.raises(AddressError, match=r"^bad checksum: "):
        cardano.read(text[:place] + other + text[place + 1 :])


def test_long_addresses_are_not_cached() -> None:
    MAINNET.write(bytes.fromhex(TRAILING[0][1]))
    cached = _write.cache_info().currsize
    MAINNET.write(b"\x61" + KEY + bytes(8000))
    assert _write.cache_info().currsize == cached


def test_every_name_but_mainnet_is_a_test_network() -> None:
    for network in (*TEST_NETWORKS, "Mainnet", "main"):
        assert codec("cardano", network).read(CIP_19[6].test) == b"\x60" + KEY
    assert (MAINNET.family, MAINNET.network, PREPROD.network) == ("cardano", "mainnet", "preprod")

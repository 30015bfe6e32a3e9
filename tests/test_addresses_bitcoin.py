"""Bitcoin: locking scripts to addresses and back, by the authors' vectors, for every script and network."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import base58, bech32
from handlers.addresses import AddressError, codec
from handlers.addresses.bitcoin import NETWORKS
from handlers.addresses.plain import NO_CREDENTIALS, is_hex

VECTORS = [
    tuple(line.split())
    for line in (Path(__file__).parent / "vectors" / "bitcoin_addresses.txt").read_text().splitlines()
    if not line.startswith("#")
]
REASONS = {"malformed", "bad-checksum", "unknown-prefix", "another-kind", "another-network"}
VALID = [(network, text, script) for network, text, script in VECTORS if script not in REASONS]
INVALID: list[tuple[str, str, str]] = [
    *((network, text, reason.replace("-", " ")) for network, text, reason in VECTORS if reason in REASONS),
    ("mainnet", "", "malformed"),
    ("mainnet", "not an address", "malformed"),
    ("mainnet", "76a91", "malformed"),
    ("mainnet", "1FsSia9rv4NeEwvJ2GvXrX7LyxYspbN2mp", "bad checksum"),
    ("mainnet", "1FsSia9rv4NeEwvJ2GvXrX7LyxYspbN2m0", "malformed"),
    ("mainnet", "bc1qvyq0cc6rahyvsazfdje0twl7ez82ndmuac2lh", "bad checksum"),
    ("mainnet", "\u0661FsSia9rv4NeEwvJ2GvXrX7LyxYspbN2mo", "malformed"),
    ("mainnet", "z" * 40_000, "malformed"),
    ("mainnet", base58.encode_check(b"\x30" + bytes(20)), "unknown prefix"),
    ("mainnet", base58.encode_check(b"\x00" + bytes(19)), "malformed"),
    ("mainnet", base58.encode_check(bytes.fromhex("0488b21e") + bytes(74)), "another kind"),
    ("mainnet", "5JuW2AMDYu4xVwRG9DZW18VbzQrGcd5RCgb99sS6ehJsNQXu5bz", "bad checksum"),  # of a private key
]
# of keys that Bitcoin Core publishes for tests
PRIVATE_KEYS = [
    "5JuW2AMDYu4xVwRG9DZW18VbzQrGcd5RCgb99sS6ehJsNQXu5b9",
    "L5nJeqKmpHp4P7F8ZYyjwc5a7P4d8EabuGAzfGJk7yC1BJyzNaEd",
    "92ZdE5HoLafywnTBbzPxbvRmp75pSfzvdU3XaZGh1cToipgdHVh",
    "cV83kKisF3RQSvXbUCm9ox3kaz5JjEUBWcx8tNydfGJcyeUxuH47",
]
WITHOUT_ADDRESS = [
    "4104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d"
    "578a4c702b6bf11d5fac",
    "2102f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9ac",
    "6a24aa21a9ede2f61c3f71d1defd3fa999dfa36953755c690689799962b48bebd836974e8cf9",
    *("51", "00", "0002abcd", "0010" + "ab" * 16, "0021" + "ab" * 33, "5101ab", "5129" + "ab" * 41, "5003abcdef"),
    *("6103abcdef", "5104abcdef", "76a914" + "ab" * 20 + "88ad", "76a914" + "ab" * 20 + "87ac"),
    *("76a915" + "ab" * 20 + "88ac", "76a914" + "ab" * 21 + "88ac", "76a94c14" + "ab" * 20 + "88ac"),
    *("a914" + "ab" * 20 + "88", "a915" + "ab" * 20 + "87", "a914" + "ab" * 21 + "87"),
]

networks = st.sampled_from(list(NETWORKS))
hashes = st.binary(min_size=20, max_size=20)
programs = st.one_of(
    st.tuples(st.just(0), hashes),
    st.tuples(st.just(0), st.binary(min_size=32, max_size=32)),
    st.tuples(st.integers(0x51, 0x60), st.binary(min_size=2, max_size=40)),
)
scripts = st.one_of(
    hashes.map(lambda digest: b"\x76\xa9\x14" + digest + b"\x88\xac"),
    hashes.map(lambda digest: b"\xa9\x14" + digest + b"\x87"),
    programs.map(lambda found: bytes((found[0], len(found[1]))) + found[1]),
)


@pytest.mark.parametrize(("network", "text", "script"), VALID)
def test_addresses_encode_scripts(network: str, text: str, script: str) -> None:
    bitcoin = codec("bitcoin", network)
    assert bitcoin.read(text).hex() == script
    assert bitcoin.write(bytes.fromhex(script)) == (text.lower() if text.startswith("BC1") else text)
    lower, upper = text.lower(), text.upper()
    if lower.startswith(("bc1", "tb1", "bcrt1")):
        assert bitcoin.read(upper) == bitcoin.read(lower) == bytes.fromhex(script)
        for mixed in (lower.capitalize(), upper[:-6] + lower[-6:], lower[:6] + upper[6:]):
            with pytest.raises(AddressError, match=r"^malformed: letters of mixed case"):
                bitcoin.read(mixed)


@pytest.mark.parametrize(("network", "text", "reason"), INVALID)
def test_refusals_have_a_reason(network: str, text: str, reason: str) -> None:
    with pytest.raises(AddressError) as caught:
        codec("bitcoin", network).read(text)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"{reason}: ")


@pytest.mark.parametrize("text", PRIVATE_KEYS)
def test_errors_do_not_repeat_private_keys(text: str) -> None:
    for network in NETWORKS:
        with pytest.raises(AddressError, match=r"^another kind: a private key, which must be kept secret") as caught:
            codec("bitcoin", network).read(text)
        assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("network", "text", "theirs"),
    [
        ("testnet4", "1FsSia9rv4NeEwvJ2GvXrX7LyxYspbN2mo", "mainnet"),
        ("regtest", "36j4NfKv6Akva9amjWrLG6MuSQym1GuEmm", "mainnet"),
        ("mainnet", "mzK2FFDEhxqHcmrJw1ysqFkVyhUULo45hZ", "testnet3, testnet4, signet or regtest"),
        ("mainnet", "2NC2hEhe28ULKAJkW5MjZ3jtTMJdvXmByvK", "testnet3, testnet4, signet or regtest"),
        ("signet", "bc1qvyq0cc6rahyvsazfdje0twl7ez82ndmuac2lhv", "mainnet"),
        ("mainnet", "tb1qcrh3yqn4nlleplcez2yndq2ry8h9ncg3qh7n54", "testnet3, testnet4 or signet"),
        ("regtest", "tb1qcrh3yqn4nlleplcez2yndq2ry8h9ncg3qh7n54", "testnet3, testnet4 or signet"),
        ("testnet3", "bcrt1qdavt4j2sd7dlhqsavtnfxvzppw6k7qy97tmnu9", "regtest"),
    ],
)
def test_another_network_is_named_with_ours(network: str, text: str, theirs: str) -> None:
    with pytest.raises(AddressError) as caught:
        codec("bitcoin", network).read(text)
    assert caught.value.reason == "another network"
    assert str(caught.value) == f"another network: an address of {theirs}, but chain.network is {network}"


@pytest.mark.parametrize("script", WITHOUT_ADDRESS)
def test_scripts_without_an_address_are_hex(script: str) -> None:
    for network in NETWORKS:
        bitcoin = codec("bitcoin", network)
        assert bitcoin.write(bytes.fromhex(script)) == script
        assert bitcoin.read(script) == bitcoin.read(script.upper()) == bytes.fromhex(script)


@given(networks, scripts)
def test_round_trip_of_every_address(network: str, script: bytes) -> None:
    bitcoin = codec("bitcoin", network)
    text = bitcoin.write(script)
    assert text != script.hex()
    assert bitcoin.read(text) == script


@given(networks, st.binary(min_size=1, max_size=60))
def test_round_trip_of_any_bytes(network: str, raw: bytes) -> None:
    bitcoin = codec("bitcoin", network)
    assert bitcoin.read(bitcoin.write(raw)) == bitcoin.read(raw.hex()) == raw


@given(networks, networks, scripts)
def test_addresses_of_other_networks_are_refused(ours: str, theirs: str, script: bytes) -> None:
    text = codec("bitcoin", theirs).write(script)
    if codec("bitcoin", ours).write(script) == text:
        assert codec("bitcoin", ours).read(text) == script
    else:
        with pytest.raises(AddressError, match=r"^another network: "):
            codec("bitcoin", ours).read(text)


@given(networks, scripts, st.data())
def test_one_wrong_character_is_refused(network: str, script: bytes, data: st.DataObject) -> None:
    text = codec("bitcoin", network).write(script)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(base58.ALPHABET.replace(text[place], "")))
    with pytest.raises(AddressError):
        codec("bitcoin", network).read(text[:place] + other + text[place + 1 :])


@given(networks, st.text(max_size=100))
def test_any_text_is_read_or_refused(network: str, text: str) -> None:
    try:
        assert codec("bitcoin", network).read(text).hex() == text.lower()
    except AddressError:
        assert not is_hex(text)


def test_an_address_of_hex_digits_is_written_as_a_script() -> None:
    digits = [bech32.CHARSET.index(digit) for digit in "023456789acdef"]
    for choice in range(14**4):
        symbols = [digits[choice // 14**place % 14] for place in range(4)] + [digits[0]] * 4
        number = 0
        for symbol in symbols:
            number = number << 5 | symbol
        address = bech32.encode("bc", 9 << 40 | number, 9, bech32.BECH32M)
        if is_hex(address):
            break
    else:
        pytest.fail("none found")
    script = bytes.fromhex("5905") + bech32.data(number, 8)
    bitcoin = codec("bitcoin", "mainnet")
    assert bitcoin.write(script) == script.hex()
    assert bitcoin.read(bitcoin.write(script)) == script
    assert bitcoin.read(address) == bytes.fromhex(address)


def test_no_credentials() -> None:
    script = bytes.fromhex(VALID[10][2])  # long enough to be mistaken for a Cardano address
    bitcoin = codec("bitcoin", "mainnet")
    assert bitcoin.stake(script) is None
    assert bitcoin.credentials(script) == NO_CREDENTIALS
    with pytest.raises(AddressError, match=r"^another kind: addresses of the family bitcoin have no credentials$"):
        bitcoin.read_credential("ab" * 28)


def test_unknown_networks_have_hex() -> None:
    codec_of = codec("bitcoin", "testnet")
    what = "bitcoin has no network 'testnet', only mainnet, testnet3, testnet4, signet"
    assert codec_of.missing is not None and codec_of.missing.startswith(what)
    assert (codec_of.family, codec_of.network) == ("bitcoin", "testnet")
    script = bytes.fromhex(VALID[10][2])
    assert codec_of.write(script) == script.hex()
    assert codec_of.read(script.hex().upper()) == script
    for text in (VALID[0][1], "tb1qw508d6qejxtdg4y5r3zarvary0c5xw7kxpjzsx", "", "xyz"):
        with pytest.raises(AddressError, match=r"^malformed: "):
            codec_of.read(text)
    assert [codec("bitcoin", name).missing for name in NETWORKS] == [None] * len(NETWORKS)


def test_raw_is_hex_both_ways() -> None:
    raw = codec("raw", "anything")
    assert (raw.family, raw.network) == ("raw", "anything")
    assert raw.write(b"") == ""
    assert raw.write(b"\xab\x01") == "ab01"
    assert raw.read("AB01") == b"\xab\x01"
    assert raw.stake(bytes(57)) is None
    assert raw.credentials(bytes(57)) == NO_CREDENTIALS
    for text in ("", "abc", "0x00", "ab 01", "ab01\n", VALID[0][1]):
        with pytest.raises(AddressError, match=r"^malformed: "):
            raw.read(text)
    with pytest.raises(AddressError, match=r"^another kind: "):
        raw.read_credential("ab" * 28)

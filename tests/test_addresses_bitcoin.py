"""Bitcoin: locking scripts to addresses and back, by the authors' vectors, for every script and network."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import base58, bech32
from handlers.addresses import AddressError, Reason, codec
from handlers.addresses.bitcoin import NETWORKS
from handlers.addresses.plain import NO_CREDENTIALS, is_hex

# Bitcoin Core, src/test/data/key_io_valid.json and test/functional/data/rpc_validateaddress.json
CORE = [
    ("mainnet", "1FsSia9rv4NeEwvJ2GvXrX7LyxYspbN2mo", "76a914a31c06bd463e3923bc1aadbde48b16976c08071788ac"),
    ("mainnet", "36j4NfKv6Akva9amjWrLG6MuSQym1GuEmm", "a914373b819a068f32b7a6b38b6b38729647cfde01c287"),
    ("testnet4", "mzK2FFDEhxqHcmrJw1ysqFkVyhUULo45hZ", "76a914ce28b26c57472737f5c3561a1761185bd8589a4388ac"),
    ("testnet4", "2NC2hEhe28ULKAJkW5MjZ3jtTMJdvXmByvK", "a914ce0bba75891ff9ec60148d4bd4a09ee2dc5c933187"),
    ("signet", "mww4LvqtTMKvmeQvizPz2EQv26xTneWrbg", "76a914b4110ba93ac54afc14da3bdd19614774a2d55d2988ac"),
    ("signet", "2N1r7aC69VHeE7yQJPDLi9T1PYq4wnwvjuT", "a9145e5a35ab44b3efaea5129ba22b88ba3e2976614587"),
    ("regtest", "n4fajahJrAuKbN7uNsKjLjQkz9Qn5ewJXQ", "76a914fdeca3b08e38af53d7c4c60e3ad208ce5066441088ac"),
    ("regtest", "2MxFajLApXpYk4VodBSZSt7rw8y4ryABkfA", "a91436e9f191e0b75036a77f65e2eaa4752443233fbe87"),
    ("mainnet", "bc1qvyq0cc6rahyvsazfdje0twl7ez82ndmuac2lhv", "00146100fc6343edc8c874496cb2f5bbfec88ea9b77c"),
    (
        "mainnet",
        "bc1qyucykdlhp62tezs0hagqury402qwhk589q80tqs5myh3rxq34nwqhkdhv7",
        "002027304b37f70e94bc8a0fbf500e0c957a80ebda87280ef58214d92f119811acdc",
    ),
    (
        "mainnet",
        "bc1p83n3au0rjylefxq2nc2xh2y4jzz4pm6zxj4mw5pagdjjr2a9f36s6jjnnu",
        "51203c671ef1e3913f94980a9e146ba895908550ef4234abb7503d436521aba54c75",
    ),
    ("mainnet", "bc1z2rksukkjr8", "520250ed"),
    ("mainnet", "bc1pfeessrawgf", "51024e73"),
    ("signet", "tb1pfees9rn5nz", "51024e73"),
    ("testnet3", "tb1qcrh3yqn4nlleplcez2yndq2ry8h9ncg3qh7n54", "0014c0ef1202759fff90ff19128936814321ee59e111"),
    (
        "testnet4",
        "tb1p35n52jy6xkm4wd905tdy8qtagrn73kqdz73xe4zxpvq9t3fp50aqk3s6gz",
        "51208d2745489a35b75734afa2da43817d40e7e8d80d17a26cd4460b0055c521a3fa",
    ),
    ("testnet4", "tb1rgv5m6uvdk3kc7qsuz0c79v88ycr5w4wa", "53104329bd718db46d8f021c13f1e2b0e726"),
    (
        "signet",
        "tb1rx9n9g37az8mu236e5jpxdt0m67y4fuq8rhs0ss3djnm0kscfrwvq0ntlyg",
        "532031665447dd11f7c54759a48266adfbd78954f0071de0f8422d94f6fb43091b98",
    ),
    ("regtest", "bcrt1qdavt4j2sd7dlhqsavtnfxvzppw6k7qy97tmnu9", "00146f58bac9506f9bfb821d62e69330410bb56f0085"),
    (
        "regtest",
        "bcrt1pfwxjqvtt4tcxrtdluukfmy2dv7xd2qzdfy6kajv5nwn4yam3wxkq3553uh",
        "51204b8d20316baaf061adbfe72c9d914d678cd5004d49356ec9949ba752777171ac",
    ),
    (
        "regtest",
        "bcrt1sx6p8njlx7h9mc2agz4yg82dzne23050ncq72cneeecez2pst8mahn8xecsf8g6hzx94420",
        "6028368279cbe6f5cbbc2ba8154883a9a29e5517d1f3c03cac4f39ce3225060b3efb799cd9c412746ae2",
    ),
]
# BIP 350, which amends the list of BIP 173
BIP_350 = [
    ("mainnet", "BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4", "0014751e76e8199196d454941c45d1b3a323f1433bd6"),
    (
        "testnet3",
        "tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3q0sl5k7",
        "00201863143c14c5166804bd19203356da136c985678cd4d27a1b8c6329604903262",
    ),
    (
        "mainnet",
        "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kt5nd6y",
        "5128751e76e8199196d454941c45d1b3a323f1433bd6751e76e8199196d454941c45d1b3a323f1433bd6",
    ),
    ("mainnet", "BC1SW50QGDZ25J", "6002751e"),
    ("mainnet", "bc1zw508d6qejxtdg4y5r3zarvaryvaxxpcs", "5210751e76e8199196d454941c45d1b3a323"),
    (
        "signet",
        "tb1qqqqqp399et2xygdj5xreqhjjvcmzhxw4aywxecjdzew6hylgvsesrxh6hy",
        "0020000000c4a5cad46221b2a187905e5266362b99d5e91c6ce24d165dab93e86433",
    ),
    (
        "testnet4",
        "tb1pqqqqp399et2xygdj5xreqhjjvcmzhxw4aywxecjdzew6hylgvsesf3hn0c",
        "5120000000c4a5cad46221b2a187905e5266362b99d5e91c6ce24d165dab93e86433",
    ),
    (
        "mainnet",
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        "512079be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    ),
]
INVALID: list[tuple[str, str, Reason]] = [
    # BIP 173
    ("mainnet", "tc1qw508d6qejxtdg4y5r3zarvary0c5xw7kg3g4ty", "unknown prefix"),
    ("mainnet", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5", "bad checksum"),
    ("mainnet", "BC13W508D6QEJXTDG4Y5R3ZARVARY0C5XW7KN40WF2", "malformed"),
    ("mainnet", "bc1rw5uspcuh", "bad checksum"),
    ("mainnet", "bc10w508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kw5rljs90", "bad checksum"),
    ("mainnet", "BC1QR508D6QEJXTDG4Y5R3ZARVARYV98GJ9P", "malformed"),
    ("testnet3", "tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3q0sL5k7", "malformed"),
    ("mainnet", "bc1zw508d6qejxtdg4y5r3zarvaryvqyzf3du", "bad checksum"),
    ("testnet3", "tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3pjxtptv", "malformed"),
    ("mainnet", "bc1gmk9yu", "malformed"),
    # what BIP 350 took from BIP 173's valid ones
    ("mainnet", "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7k7grplx", "bad checksum"),
    ("mainnet", "BC1SW50QA3JX3S", "bad checksum"),
    ("mainnet", "bc1zw508d6qejxtdg4y5r3zarvaryvg6kdaj", "bad checksum"),
    # BIP 350
    ("mainnet", "tc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq5zuyut", "unknown prefix"),
    ("mainnet", "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqh2y7hd", "bad checksum"),
    ("testnet3", "tb1z0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqglt7rf", "bad checksum"),
    ("mainnet", "BC1S0XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ54WELL", "bad checksum"),
    ("mainnet", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kemeawh", "bad checksum"),
    ("testnet3", "tb1q0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq24jc47", "bad checksum"),
    ("mainnet", "bc1p38j9r5y49hruaue7wxjce0updqjuyyx0kh56v8s25huc6995vvpql3jow4", "malformed"),
    ("mainnet", "BC130XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ7ZWS8R", "malformed"),
    ("mainnet", "bc1pw5dgrnzv", "malformed"),
    ("mainnet", "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v8n0nx0muaewav253zgeav", "malformed"),
    ("testnet3", "tb1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq47Zagq", "malformed"),
    ("mainnet", "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v07qwwzcrf", "malformed"),
    ("testnet3", "tb1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vpggkg4j", "malformed"),
    # Bitcoin Core, src/test/data/key_io_invalid.json
    ("mainnet", "x", "malformed"),
    ("mainnet", "1GAdfviErV2Ew95FPtZyikz2qGP3gyCB6Hyu94sedAkPpA523m3fQwps9YKUZkKgQckGPKhRsFR", "malformed"),
    ("mainnet", "37G2kMDLpmWVhimxRdzwNfE8JFvWXnJYnVcXeeGrek2qumdJuK7XArcVVpRtLLjRra3t64BEPF2", "malformed"),
    ("mainnet", "2UVPFpGYnLHJezFzjUo42our6PMEoozzRdM", "unknown prefix"),
    ("mainnet", "AZEah8d1EK362okRBS66e8SvdtYkrE8tsX", "unknown prefix"),
    ("regtest", "bcrt1qzwmyj0z924g7fzs5yvnrkc43y76RVyr2lh5t4r", "malformed"),
    ("regtest", "bcrt1r2qxpwuge", "malformed"),
    (
        "mainnet",
        "sp1qq22l5s6l9460ww6t4tkzsy2a7zejurcmzz35pt0ffrzk5erlaykdcqugecjjnjqf7ggq39vl6wexjlm00n66z94v675n7wcux6d2krr68gcwu9kg",
        "unknown prefix",
    ),
    # ours
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
    "51",
    "00",
    "0002abcd",
    "0010" + "ab" * 16,
    "0021" + "ab" * 33,
    "5101ab",
    "5129" + "ab" * 41,
    "5003abcdef",
    "6103abcdef",
    "5104abcdef",
    "76a914" + "ab" * 20 + "88ad",
    "76a914" + "ab" * 20 + "87ac",
    "76a915" + "ab" * 20 + "88ac",
    "76a914" + "ab" * 21 + "88ac",
    "76a94c14" + "ab" * 20 + "88ac",
    "a914" + "ab" * 20 + "88",
    "a915" + "ab" * 20 + "87",
    "a914" + "ab" * 21 + "87",
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


@pytest.mark.parametrize(("network", "text", "script"), CORE + BIP_350)
def test_addresses_stand_for_scripts(network: str, text: str, script: str) -> None:
    bitcoin = codec("bitcoin", network)
    assert bitcoin.read(text).hex() == script
    assert bitcoin.write(bytes.fromhex(script)) == (text.lower() if text.startswith("BC1") else text)


@pytest.mark.parametrize(
    ("network", "text", "script"), [row for row in CORE + BIP_350 if row[1].lower().startswith(("bc1", "tb1", "bcrt1"))]
)
def test_bech32_in_either_case_but_not_in_both(network: str, text: str, script: str) -> None:
    bitcoin = codec("bitcoin", network)
    assert bitcoin.read(text.upper()) == bitcoin.read(text.lower()) == bytes.fromhex(script)
    for mixed in (
        text.lower().capitalize(),
        text.upper()[:-6] + text.lower()[-6:],
        text.lower()[:6] + text.upper()[6:],
    ):
        with pytest.raises(AddressError, match=r"^malformed: letters of mixed case"):
            bitcoin.read(mixed)


@pytest.mark.parametrize(("network", "text", "reason"), INVALID)
def test_every_refusal_says_which(network: str, text: str, reason: Reason) -> None:
    with pytest.raises(AddressError) as caught:
        codec("bitcoin", network).read(text)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"{reason}: ")


@pytest.mark.parametrize("text", PRIVATE_KEYS)
def test_a_private_key_is_not_repeated(text: str) -> None:
    for network in NETWORKS:
        with pytest.raises(AddressError, match=r"^another kind: a private key, which must be kept secret") as caught:
            codec("bitcoin", network).read(text)
        assert text not in str(caught.value)


def test_the_checksum_decides_before_the_kind() -> None:
    with pytest.raises(AddressError, match=r"^bad checksum: "):
        codec("bitcoin", "mainnet").read(PRIVATE_KEYS[0][:-1] + "z")


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


def test_bip_173_example_from_its_key() -> None:
    key = bytes.fromhex("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
    script = b"\x00\x20" + sha256(b"\x21" + key + b"\xac").digest()  # version 0, hash of: <key> CHECKSIG
    address = "bc1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3qccfmv3"
    assert codec("bitcoin", "mainnet").write(script) == address
    assert codec("bitcoin", "mainnet").read(address) == script


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
def test_an_address_is_read_where_it_is_written_alike(ours: str, theirs: str, script: bytes) -> None:
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


def test_a_text_of_hex_digits_alone_is_never_written() -> None:
    """An address of version 9 that consists of hex digits can be made on purpose; the text would be read as hex."""
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
    script = bytes.fromhex(CORE[10][2])  # long enough to be mistaken for a Cardano address
    bitcoin = codec("bitcoin", "mainnet")
    assert bitcoin.stake(script) is None
    assert bitcoin.credentials(script) == NO_CREDENTIALS
    with pytest.raises(AddressError, match=r"^another kind: addresses of the family bitcoin have no credentials$"):
        bitcoin.read_credential("ab" * 28)


def test_of_an_unknown_network_there_is_hex() -> None:
    codec_of = codec("bitcoin", "testnet")
    what = "bitcoin has no network 'testnet', only mainnet, testnet3, testnet4, signet"
    assert codec_of.missing is not None and codec_of.missing.startswith(what)
    assert (codec_of.family, codec_of.network) == ("bitcoin", "testnet")
    script = bytes.fromhex(CORE[10][2])
    assert codec_of.write(script) == script.hex()
    assert codec_of.read(script.hex().upper()) == script
    for text in (CORE[0][1], "tb1qw508d6qejxtdg4y5r3zarvary0c5xw7kxpjzsx", "", "xyz"):
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
    for text in ("", "abc", "0x00", "ab 01", "ab01\n", CORE[0][1]):
        with pytest.raises(AddressError, match=r"^malformed: "):
            raw.read(text)
    with pytest.raises(AddressError, match=r"^another kind: "):
        raw.read_credential("ab" * 28)

"""What is not understood is refused, by an error that names the place; nothing of it is guessed or left out."""

import json

import pytest
from ogmios_messages import Json, bech32_of, clause
from test_ogmios_blocks import KEY_ADDRESS, NATIVE, decoded, made, made_output, made_tx

from feeds.cardano.ogmios_json import NEXT, MessageError, ServerFault, name_of, read


def wrong(block: Json) -> str:
    with pytest.raises(MessageError) as error:
        decoded(block)
    return str(error.value)


def test_utxo_096_unknown_way_to_spend() -> None:
    what = "Invalid enum value 'something' - at `$.result.block.transactions[1].spends`"
    assert wrong(made(made_tx(), made_tx(spends="something"))) == what


TX = ".transactions[0]"
OUTPUT = f"{TX}.outputs[0]"
ASSETS = {"ada": {"lovelace": 1}}
BAD_OUTPUTS: list[tuple[Json, str]] = [
    (
        {"address": "addr1vx2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzers66hrl9"},
        f"bad checksum: some character is wrong, missing or too many - at `${OUTPUT}.ad",
    ),
    ({"address": KEY_ADDRESS.upper()}, f"is not a digit of base58 - at `${OUTPUT}.address`"),
    ({"address": "addr1"}, "cut off: 0 characters after the separator"),
    ({"address": bech32_of("addr", [])}, "no data between prefix and checksum"),
    ({"address": bech32_of("addr", [31, 28])[:-1] + "Q"}, "letters of mixed case"),
    ({"address": "addr1é"}, "not printable ASCII"),
    ({"address": "stake1uyehkck0lajq8gr28t9uxnuvgcqrc6070x3k9r8048z8y5gh6ffgw"}, "not a digit of base58"),
    ({"address": ""}, "not a Byron address"),
    ({"address": "Ae2tdPwUPEZFRbyhz3cpfC2CumGzNkFBN2L42rcUc2yjQpEkxDbkPodpMAj"}, "checksum is wrong"),
    ({"address": "2" * 70_000}, "70000 characters"),
    ({"address": "addr1" + "q" * 70_000}, "70005 characters"),
    ({"address": 5}, "Expected `str`, got `int`"),
    ({"value": {}}, f"the value has no `ada` with only `lovelace` in it - at `${OUTPUT}.value`"),
    ({"value": {"coins": 5, "assets": {}}}, "Expected `object`, got `int`"),
    ({"value": {"ada": {"lovelace": 1, "more": 1}}}, "the value has no `ada` with only `lovelace` in it"),
    ({"value": {"ada": {"lovelace": -1}}}, f"-1 is not an amount - at `${OUTPUT}.value.ada.lovelace`"),
    ({"value": {"ada": {"lovelace": 2**64}}}, "18446744073709551616 is not an amount"),
    ({"value": {"ada": {"lovelace": 1.5}}}, "Expected `int`, got `float`"),
    ({"value": {"ada": {"lovelace": "1"}}}, "Expected `int`, got `str`"),
    ({"value": ASSETS | {"12" * 28: {"ab": -1}}}, f"-1 is not an amount - at `${OUTPUT}.value.{'12' * 28}.ab`"),
    ({"value": ASSETS | {"12" * 28: {"ab": 2**64}}}, "is not an amount"),
    ({"value": ASSETS | {"12" * 27: {"ab": 1}}}, "27 bytes, expected 28"),
    ({"value": ASSETS | {"12" * 28: {"zz": 1}}}, "not hex"),
    ({"value": ASSETS | {"12" * 28: {"a b ": 1}}}, "not hex"),
    ({"value": ASSETS | {"12" * 28: {"ab" * 33: 1}}}, "an asset name has more than 32 bytes"),
    ({"datumHash": "ab"}, f"1 bytes, expected 32 - at `${OUTPUT}.datumHash`"),
    ({"datum": "abc"}, f"not hex - at `${OUTPUT}.datum`"),
    ({"datum": "d87980", "datumHash": "dd" * 32}, "both a datum and a datum hash"),
    ({"datum": {"int": 5}}, "Expected `str | null`, got `object`"),
    ({"covenant": "?"}, "unknown field `covenant`"),
    ({"script": {"language": "plutus:v4", "cbor": "00"}}, "Invalid enum value 'plutus:v4'"),
    ({"script": {"language": "simplicity", "cbor": "00"}}, "Invalid enum value 'simplicity'"),
    ({"script": {"language": "plutus:v2"}}, f"a script of plutus:v2 has no bytes - at `${OUTPUT}.script.cbor`"),
    ({"script": {"language": "plutus:v2", "json": clause(NATIVE)}}, "a script of plutus:v2 has no bytes"),
    ({"script": {"language": "native"}}, "a script of native has no bytes"),
    (
        {"script": {"language": "native", "cbor": "82"}},
        f"not a script: a script reference is cut short - at `${OUTPUT}",
    ),
    ({"script": {"language": "native", "cbor": "8201800"}}, "not hex"),
    ({"script": {"language": "native", "cbor": "820180820180"}}, "not a script: a script reference does not end"),
    ({"script": {"language": "native", "json": {"clause": "guard", "from": "ab"}}}, "Invalid value 'guard'"),
    ({"script": {"language": "native", "json": {"clause": "signature", "from": "ab"}}}, "1 bytes, expected 28 - at `$"),
    ({"script": {"language": "native", "json": {"clause": "all"}}}, "missing required field `from`"),
    ({"script": {"language": "native", "json": {"clause": "after", "slot": -1}}}, "Expected `int` >= 0"),
    ({"script": {"language": "native", "json": {"clause": "after", "slot": 1, "or": 2}}}, "unknown field `or`"),
]


@pytest.mark.parametrize("values", [[0] * 9, [0] * 3, [0, 0, 0, 1], [31] * 4])
def test_bech32_with_left_over_bits(values: list[int]) -> None:
    assert decoded(made(made_tx(made_output(address=bech32_of("addr", [31, 28]))))).txs[0].outputs[0].address == b"\xff"
    what = wrong(made(made_tx(made_output(address=bech32_of("addr", values)))))
    assert "the bits that fill up the last character are too many or not zeros - at `$" in what


@pytest.mark.parametrize(("output", "what"), BAD_OUTPUTS)
def test_malformed_outputs_are_refused(output: Json, what: str) -> None:
    assert what in wrong(made(made_tx(made_output() | output)))


UNIT = "923918e403bf43c34b4ef6b48eb2ee04babed17320d8d1b9ff9ad086e86f44ec"
BAD_TXS: list[tuple[Json, str]] = [
    ({"id": "ab"}, f"1 bytes, expected 32 - at `${TX}.id`"),
    ({"id": "zz" * 32}, "not hex"),
    ({"id": "ab " * 21 + "a"}, "not hex"),
    (
        {"inputs": [{"transaction": {"id": "ab"}, "index": 0}]},
        f"1 bytes, expected 32 - at `${TX}.inputs[0].transaction.id`",
    ),
    (
        {"inputs": [{"transaction": {"id": "ab" * 32}, "index": 2**32}]},
        f"4294967296 is too large - at `${TX}.inputs[0].index`",
    ),
    ({"inputs": [{"transaction": {"id": "ab" * 32}, "index": -1}]}, "Expected `int` >= 0"),
    ({"inputs": [{"txId": "ab" * 32, "index": 0}]}, "missing required field `transaction`"),
    ({"inputs": None}, "Expected `array`, got `null`"),
    ({"outputs": None}, "Expected `array`, got `null`"),
    ({"collaterals": [{}]}, "missing required field"),
    ({"references": {}}, "Expected `array`, got `object`"),
    ({"collateralReturn": {"address": KEY_ADDRESS}}, "missing required field `value`"),
    ({"collateralReturn": made_output(datum="x")}, f"not hex - at `${TX}.collateralReturn.datum`"),
    ({"fee": 5}, "Expected `object | null`, got `int`"),
    ({"fee": {"ada": {"lovelace": 2**64}}}, f"is not an amount - at `${TX}.fee.ada.lovelace`"),
    ({"cbor": "a0"}, f"not a transaction - at `${TX}.cbor`"),
    ({"cbor": ""}, "not a transaction"),
    ({"subTransactions": [{}]}, f"nested transactions are not supported - at `${TX}.subTransactions`"),
    ({"subTransactions": {}}, "Expected `array`, got `object`"),
    ({"datums": {"ab": "d87980"}}, f"1 bytes, expected 32 - at `${TX}.datums[...]`"),
    ({"datums": {UNIT: "d8798"}}, f"not hex - at `${TX}.datums.{UNIT}`"),
    ({"datums": {UNIT: "d87a80"}}, f"the datum does not match its hash - at `${TX}.datums.{UNIT}`"),
    ({"datums": ["d87980"]}, "Expected `object | null`, got `array`"),
    ({"spends": None}, "Expected `str`, got `null`"),
    ({"extraOutputs": []}, f"unknown field `extraOutputs` - at `$.result.block{TX}`"),
    ({"Mint": {}}, "unknown field `Mint`"),
]


@pytest.mark.parametrize(("tx", "what"), BAD_TXS)
def test_malformed_transactions_are_refused(tx: Json, what: str) -> None:
    assert what in wrong(made(made_tx() | tx))


BAD_BLOCKS: list[tuple[Json, str]] = [
    ({"type": "leios"}, "Invalid value 'leios' - at `$.result.block.type`"),
    ({"type": None}, "Expected `str`"),
    ({"era": "dijkstra"}, "Invalid enum value 'dijkstra' - at `$.result.block.era`"),
    ({"era": "byron"}, "Invalid enum value 'byron'"),
    ({"type": "bft"}, "Invalid enum value 'conway'"),
    ({"type": "ebb"}, "Invalid enum value 'conway'"),
    ({"slot": None}, "Expected `int`, got `null` - at `$.result.block.slot`"),
    ({"slot": -1}, "Expected `int` >= 0"),
    ({"slot": 1 << 60}, "height 7 and slot 1152921504606846976 are too large for a block - at `$.height`"),
    ({"height": 1 << 60}, "are too large for a block"),
    ({"height": "7"}, "Expected `int`, got `str`"),
    ({"id": "ab"}, "1 bytes, expected 32 - at `$.id`"),
    ({"ancestor": "origin"}, "not hex - at `$.ancestor`"),
    ({"transactions": None}, "Expected `array`, got `null`"),
    ({"endorsed": [made_tx()]}, "unknown field `endorsed` - at `$.result.block`"),
    ({"delegate": {}}, "unknown field `delegate`"),
    ({"type": "bft", "era": "byron", "nonce": {}}, "unknown field `nonce`"),
]


@pytest.mark.parametrize(("block", "what"), BAD_BLOCKS)
def test_malformed_blocks_are_refused(block: Json, what: str) -> None:
    assert what in wrong(made() | block)


def test_malformed_boundary_blocks_are_refused() -> None:
    boundary = {"type": "ebb", "era": "byron", "id": "eb" * 32, "ancestor": "ab" * 32, "height": 5}
    assert decoded(boundary).height == 5
    for more in ("slot", "transactions", "size"):
        assert f"unknown field `{more}` - at `$.result.block`" in wrong(boundary | {more: []})


def test_failed_transactions_exist_since_alonzo() -> None:
    failed = made_tx(spends="collaterals")
    assert not decoded(made(failed, era="alonzo")).txs[0].valid
    for era in ("shelley", "allegra", "mary"):
        assert f"a transaction of {era} cannot spend its collateral - at `${TX}.spends`" in wrong(made(failed, era=era))
    assert "cannot spend its collateral" in wrong(made(failed, type="bft", era="byron"))


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"\xff\xfe", "malformed"),
        (b'{"result":{"direction":"backward","point":"\xff","tip":"origin"}}', "can't decode byte 0xff"),
        (b"{}", "the answer has neither result nor error"),
        (b'{"result":null}', "the answer has neither result nor error"),
        (
            b'{"id":2,"result":{"direction":"backward","point":"origin","tip":"origin"}}',
            "the answer to request 2, expected 1",
        ),
        (b'{"result":{"direction":"sideways"}}', "Invalid value 'sideways' - at `$.result.direction`"),
        (b'{"result":{"direction":"forward","tip":"origin"}}', "missing required field `block`"),
        (b'{"result":{"direction":"backward","point":"genesis","tip":"origin"}}', "Invalid enum value 'genesis'"),
        (b'{"result":{"direction":"backward","point":{"slot":5},"tip":"origin"}}', "missing required field `id`"),
        (b'{"result":{"direction":"backward","point":"origin","tip":{"slot":5,"id":""}}}', "missing required field"),
        (b'{"result":{"RollBackward":{}}}', "missing required field `direction`"),
        (b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}", "nested too deeply"),
    ],
)
def test_malformed_answers_are_refused(raw: bytes, what: str) -> None:
    with pytest.raises(MessageError) as error:
        read(NEXT, raw, 1)
    assert what in str(error.value)


def test_errors_are_one_bounded_line() -> None:
    for text in ("a\nb" * 9, "x" * 5_000_000):
        for bad in (made_tx(spends=text), made_tx(made_output({"ada": {"lovelace": 1}, text: {"ab": 1}}))):
            what = wrong(made(bad))
            assert "\n" not in what and len(what) < 500
        with pytest.raises(ServerFault) as error:
            read(NEXT, json.dumps({"error": {"code": 7, "message": text}}).encode(), 1)
        assert "\n" not in str(error.value) and len(str(error.value)) < 500
        name = name_of(json.dumps({"result": {"block": {"id": text, "height": [text]}}}).encode())
        assert "\n" not in name and len(name) < 1000
    assert name_of(b"[") == name_of(b"{}") == name_of(b'{"a":' + b"[" * 90_000) == "an answer"

"""Blocks as an Ogmios server tells them become what the decoder of chunk files makes of the same blocks."""

import json
from typing import Any

import pytest
from ogmios_messages import V6, V7, Dialect, Json, address_text, block_json, carried, clause
from real_data import found, names, need
from test_cardano_avvm import BLOCKS as MADE_BLOCKS
from test_cardano_avvm import CHAIN as MADE_CHAIN
from test_cardano_single_blocks import FILES

from feeds.cardano.block import decode_block as decode_cbor
from feeds.cardano.chunks import blocks_in
from feeds.cardano.eras import MAINNET, PREVIEW, Network
from feeds.cardano.nesting import thoroughly
from feeds.cardano.ogmios_addresses import from_text
from feeds.cardano.ogmios_blocks import decode_block
from feeds.cardano.ogmios_json import NEXT, Forward, read
from handlers.events import BlockApplied, Output, Tx

WHOLE = Dialect(transaction_cbor=True)
EPOCHS = [f"cardano/preview-genesis-run/epoch{epoch:02}.chunks.xz" for epoch in (0, 7, 9, 13)]
KEY_ADDRESS = "addr1vx2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzers66hrl8"
SCRIPT_HASH = "7f287c9b596851bd9394fc84625c2876073de7b19512390e54d64b50"
NATIVE = [1, [[0, bytes.fromhex("3c07030e36bfffe67e2e2ec09e5293d384637cd2f004356ef320f3fe")], [4, 100], [5, 150]]]
NATIVE_CBOR = "8201838200581c3c07030e36bfffe67e2e2ec09e5293d384637cd2f004356ef320f3fe8204186482051896"


def answer(block: Any, **more: Any) -> bytes:
    result = {"direction": "forward", "block": block, "tip": "origin"} | more
    return json.dumps({"jsonrpc": "2.0", "method": "nextBlock", "result": result, "id": 1}).encode()


def decoded(block: Json, network: Network = MAINNET, before: int | None = None) -> BlockApplied:
    message = read(NEXT, answer(block), 1)
    assert isinstance(message, Forward)
    return thoroughly(lambda each: decode_block(each, network, before), message.block)


def made(*txs: Json, **more: Any) -> Json:
    head = {"type": "praos", "era": "conway", "id": "ab" * 32, "ancestor": "cd" * 32, "height": 7, "slot": 5_000_000}
    return head | {"transactions": list(txs)} | more


def made_tx(*outputs: Json, **more: Any) -> Json:
    whole: Json = {"id": "ee" * 32, "spends": "inputs", "inputs": [], "outputs": list(outputs), "signatories": []}
    return whole | more


def made_output(value: Json | None = None, **more: Any) -> Json:
    return {"address": KEY_ADDRESS, "value": value or {"ada": {"lovelace": 2}}} | more


def only_tx(tx: Json) -> Tx:
    (only,) = decoded(made(tx)).txs
    return only


def only_output(output: Json) -> Output:
    (only,) = only_tx(made_tx(output)).outputs
    return only


@pytest.mark.parametrize("file", FILES)
def test_single_blocks(file: str) -> None:
    raw = need(file).read_bytes()
    truth, _ = decode_cbor(raw, MAINNET)
    for dialect in (V6, V7, WHOLE, Dialect(7, transaction_cbor=True)):
        assert decoded(block_json(truth, dialect, raw)) == carried(truth, dialect)


@pytest.mark.parametrize("file", [*names("cardano/preview-*/run.chunk.xz"), *found(EPOCHS)])
def test_a_stretch_of_preview(file: str) -> None:
    met = 0
    for block, _ in blocks_in(need(file), PREVIEW):
        assert decoded(block_json(block), PREVIEW) == carried(block)
        met += len(block.txs)
    assert met


def test_made_blocks_of_old_eras() -> None:
    for raw, block in zip(MADE_CHAIN, MADE_BLOCKS, strict=True):
        for dialect in (V6, V7, WHOLE):
            assert decoded(block_json(block, dialect, raw)) == carried(block, dialect)


def test_addresses_with_malformed_pointers_are_kept() -> None:
    blocks = (decode_cbor(need(file).read_bytes(), MAINNET)[0] for file in FILES)
    addresses = {output.address for block in blocks for tx in block.txs for output in tx.outputs}
    for address in addresses | {bytes.fromhex("41" + "12" * 28 + "ff" * 30 + "7f"), bytes.fromhex("01" + "12" * 80)}:
        assert from_text(address_text(address)) == address


def boundary(height: int, ancestor: str) -> Json:
    return {"type": "ebb", "era": "byron", "id": "eb" * 32, "ancestor": ancestor, "height": height}


def test_the_first_boundary_block() -> None:
    block = decoded(boundary(0, "5f" * 32))
    assert (block.height, block.slot, block.epoch, block.era, block.txs) == (0, 0, 0, "byron", [])
    assert (block.prev_hash, block.time) == (bytes.fromhex("5f" * 32), MAINNET.start)


@pytest.mark.parametrize(("before", "slot"), [(0, 21_600), (21_599, 21_600), (21_600, 43_200), (43_100, 43_200)])
def test_a_boundary_block_has_the_first_slot_of_the_next_epoch(before: int, slot: int) -> None:
    block = decoded(boundary(21_586, "cd" * 32), before=before)
    assert (block.height, block.slot, block.epoch) == (21_586, slot, slot // 21_600)
    assert block.time == MAINNET.start + 20 * slot


def test_ancestor_and_transactions_may_be_absent() -> None:
    block = made(ancestor="genesis")
    del block["transactions"]
    assert (decoded(block).prev_hash, decoded(block).txs) == (None, [])


def test_utxo_095_values() -> None:
    zero = only_output(made_output({"ada": {"lovelace": 0}, "12" * 28: {"": 0, "ab": 1}, "13" * 28: {}}))
    assert (zero.value, zero.assets) == (0, [(bytes.fromhex("12" * 28), b"\xab", 1)])
    output = only_output(made_output({"ada": {"lovelace": 2}, "12" * 28: {"": 5, "ab": 1}}))
    policy = bytes.fromhex("12" * 28)
    assert (output.value, output.assets) == (2, [(policy, b"", 5), (policy, b"\xab", 1)])


def test_amounts_are_exact() -> None:
    numbers = [2**53 + 1, 9_223_371_992_031_396_353, 2**63, 2**64 - 1]
    for number in numbers:
        output = only_output(made_output({"ada": {"lovelace": number}, "12" * 28: {"cafe": number}}))
        assert (output.value, output.assets[0][2]) == (number, number)
    assert only_tx(made_tx(fee={"ada": {"lovelace": 2**64 - 1}})).fee == 2**64 - 1


def test_a_failed_transaction_spends_its_collateral() -> None:
    point = {"transaction": {"id": "aa" * 32}, "index": 3}
    tx = made_tx(spends="collaterals", inputs=[point], collaterals=[point, point], collateralReturn=made_output())
    del tx["outputs"]
    failed = only_tx(tx)
    assert (failed.valid, failed.outputs, failed.collateral) == (False, [], [(b"\xaa" * 32, 3)])
    assert failed.collateral_return is not None and failed.collateral_return.value == 2


def test_an_input_listed_twice_counts_once() -> None:
    points = [{"transaction": {"id": each * 32}, "index": 1} for each in ("bb", "aa", "bb")]
    tx = only_tx(made_tx(inputs=points, references=points))
    assert tx.inputs == tx.references == [(b"\xbb" * 32, 1), (b"\xaa" * 32, 1)]


@pytest.mark.parametrize(
    ("cbor", "size"), [("84a0a0f5f6", 4), ("83a0a0f6", 4), ("82a0a0", 3)], ids=["alonzo", "shelley", "byron"]
)
def test_size_is_the_ledgers(cbor: str, size: int) -> None:
    assert (only_tx(made_tx(cbor=cbor)).size, only_tx(made_tx()).size) == (size, None)


def test_the_second_cbor_of_byron_counts() -> None:
    text = answer(made(made_tx(cbor="83a0a0f6"))).replace(
        b'"cbor": "83a0a0f6"', b'"cbor": "83a0a0f6", "cbor": "82a0a0"'
    )
    message = read(NEXT, text, 1)
    assert isinstance(message, Forward)
    assert decode_block(message.block, MAINNET).txs[0].size == 3


@pytest.mark.parametrize("language", [1, 2, 3])
def test_plutus_scripts(language: int) -> None:
    code = "4d01000033222220051200120011"
    output = only_output(made_output(script={"language": f"plutus:v{language}", "cbor": code}))
    assert output.script_ref is not None and output.script_ref_hash is not None
    assert output.script_ref.hex() == f"820{language}4e{code}"
    if language == 1:
        assert output.script_ref_hash.hex() == "67f33146617a5e61936081db3b2117cbf59bd2123748f58ac9678656"


def test_native_scripts() -> None:
    script = {"language": "native", "json": clause(NATIVE)}
    for message in (script, script | {"cbor": NATIVE_CBOR}):
        output = only_output(made_output(script=message))
        assert output.script_ref is not None and output.script_ref_hash is not None
        assert (output.script_ref.hex(), output.script_ref_hash.hex()) == ("8200" + NATIVE_CBOR, SCRIPT_HASH)
    odd = "82019fff"
    output = only_output(made_output(script={"language": "native", "json": clause([1, []]), "cbor": odd}))
    assert output.script_ref == bytes.fromhex("8200" + odd)


def test_every_clause() -> None:
    key = [0, bytes(28)]
    script: list[Any] = [3, 300, [key, [1, []], [2, [key] * 24], [3, -1, [[4, 0], [5, 2**64 - 1]]]]]
    output = only_output(made_output(script={"language": "native", "json": clause(script)}))
    key_hex = "8200581c" + "00" * 28
    inner = ["820180", "82029818" + key_hex * 24, "830320" + "82" + "820400" + "82051b" + "ff" * 8]
    assert output.script_ref is not None
    assert output.script_ref.hex() == "8200" + "8303" + "19012c" + "84" + key_hex + "".join(inner)


@pytest.mark.parametrize("depth", [10, 3000])
def test_deep_nesting_is_decoded(depth: int) -> None:
    native = '{"clause":"all","from":[' * depth + '{"clause":"after","slot":1}' + "]}" * depth
    text = answer(made(made_tx(made_output(script={"language": "native", "json": "SCRIPT"}), metadata="METADATA")))
    text = text.replace(b'"SCRIPT"', native.encode()).replace(b'"METADATA"', b"[" * 5 * depth + b"]" * 5 * depth)
    message = read(NEXT, text, 1)
    assert isinstance(message, Forward)
    (output,) = thoroughly(lambda each: decode_block(each, MAINNET), message.block).txs[0].outputs
    assert output.script_ref == b"\x82\x00" + b"\x82\x01\x81" * depth + b"\x82\x04\x01"


IGNORED_OF_TX = """
totalCollateral mint certificates withdrawals treasury proposals votes network validityInterval metadata
scriptIntegrityHash requiredExtraSignatories requiredExtraScripts signatories scripts redeemers credits guards
accountBalanceIntervals
"""
IGNORED_OF_BLOCK = {
    "praos": ["protocol", "issuer", "nonce"],
    "bft": ["protocol", "issuer", "delegate", "operationalCertificates"],
}


@pytest.mark.parametrize("anything", [None, [{}], {"a": [1]}], ids=repr)
def test_fields_without_effect_on_outputs_are_ignored(anything: object) -> None:
    plain = made_tx(made_output(), cbor=None, fee=None)
    full = plain | dict.fromkeys(IGNORED_OF_TX.split(), anything)
    for kind, fields in IGNORED_OF_BLOCK.items():
        era = "byron" if kind == "bft" else "babbage"
        assert decoded(made(full, type=kind, era=era, **dict.fromkeys(fields, anything))) == decoded(
            made(plain, type=kind, era=era)
        )

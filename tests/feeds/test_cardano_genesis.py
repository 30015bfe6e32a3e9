"""Genesis files: which outputs there are, under which ids, and how slots count."""

import json
from pathlib import Path
from typing import Any

import pytest
from real_data import need, rows
from test_cardano_made_blocks import BYRON_ADDRESS, KEY_ADDRESS, digest

from feeds.cardano.addresses import MAINNET_MAGIC, from_base58, is_redeem, redeem_address
from feeds.cardano.eras import PREVIEW, Network
from feeds.cardano.errors import GenesisError
from feeds.cardano.genesis import read_genesis
from handlers.events import GenesisOutput, Output

# Public facts of mainnet: keys of vouchers, the ids under which their outputs are on the chain.
VOUCHER = "-0BJDi-gauylk4LptQTgjMeo7kY9lTCbZv12vwOSTZk="
VOUCHER_ADDRESS = "82d818582183581cccdf735b7d5cafe44e65e75a82fd4305fe7712924a8e1196fefdbddfa0021a9cbc2ffe"
VOUCHER_TEXT = "Ae2tdPwUPEZHFQnrr2dYB4GEQ8WVKspEyrg29pJ3f7qdjzaxjeShEEokF5f"
VOUCHER_IDS = {
    VOUCHER: "8ee33c9906974706223d7d500d63bbee2369d7150f972757a9fdded2f706b938",
    "DKsNZvWNRoVbR4wIVAM2XE3IQ8vyPeE1Q8oRtraauiM=": "633beef5ce862f414e61c4963f57b266b7a5c46f91274141dba6cc1063c74204",
}
BYRON_TEXT = "Ae2tdPwUPEZLs4HtbuNey7tK4hTKrwNwYtGqp7bDfCy2WdR3P6735W5Yfpe"


def write(folder: Path, document: Any, name: str = "genesis.json") -> Path:
    file = folder / name
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_preview_outputs_are_the_expected_ones() -> None:
    genesis = read_genesis([need("cardano/preview-genesis-100/genesis.json")], "preview")
    (first, *_) = rows(need("expected/cardano-preview-genesis-100.blocks.jsonl.xz"))
    found = genesis.outputs.outputs
    assert (len(found), sum(each.output.value for each in found)) == (first["utxo_count"], first["utxo_sum"])
    assert not any(is_redeem(each.output.address) for each in found)
    assert genesis.network.start == PREVIEW.start


def test_vouchers_of_mainnet(tmp_path: Path) -> None:
    amounts = {voucher: str(1000 + n) for n, voucher in enumerate(VOUCHER_IDS)}
    document = {"avvmDistr": amounts, "protocolConsts": {"k": 2160, "protocolMagic": MAINNET_MAGIC}}
    found = read_genesis([write(tmp_path, document)]).outputs.outputs
    assert [(each.txid.hex(), each.index, each.output.value) for each in found] == [
        (txid, 0, 1000 + n) for n, txid in enumerate(VOUCHER_IDS.values())
    ]
    assert all(is_redeem(each.output.address) for each in found)
    assert found[0].output.address == bytes.fromhex(VOUCHER_ADDRESS) == from_base58(VOUCHER_TEXT)


def test_vouchers_of_a_testnet_name_it() -> None:
    address = redeem_address(bytes(32), 1)
    assert is_redeem(address)
    assert b"\xa1\x02\x41\x01" in address
    assert address != redeem_address(bytes(32), MAINNET_MAGIC)


def test_both_files_together(tmp_path: Path) -> None:
    byron = {
        "startTime": 1_600_000_000,
        "protocolConsts": {"k": 432, "protocolMagic": 42},
        "blockVersionData": {"slotDuration": "1000", "maxTxSize": "4096"},
        "nonAvvmBalances": {BYRON_TEXT: "12"},
        "avvmDistr": {},
    }
    shelley = {
        "systemStart": "2020-09-13T12:26:40Z",
        "slotLength": 0.5,
        "epochLength": 500,
        "networkMagic": 42,
        "initialFunds": {KEY_ADDRESS.hex(): 2**64 - 1},
    }
    files = [write(tmp_path, byron, "byron.json"), write(tmp_path, shelley, "shelley.json")]
    genesis = read_genesis(files, "devnet", byron_epochs=2)
    assert genesis.outputs.outputs == [
        GenesisOutput(digest(BYRON_ADDRESS), 0, Output(BYRON_ADDRESS, 12)),
        GenesisOutput(digest(KEY_ADDRESS), 0, Output(KEY_ADDRESS, 2**64 - 1)),
    ]
    assert genesis.network == Network("devnet", 1_600_000_000, 2, 4320, 1.0, 500, 0.5, 42)
    assert (genesis.network.epoch(8639), genesis.network.epoch(8640), genesis.network.epoch(9140)) == (1, 2, 3)
    assert genesis.network.time(8643) == 1_600_000_000 + 8640 + 1
    only_shelley = read_genesis(files[1:]).network
    assert (only_shelley.start, only_shelley.byron_epochs) == (1_600_000_000, 0)


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "not a genesis file of Byron or Shelley"),
        ({"nonAvvmBalances": {"0OIl": "1"}}, "'0', character 1, is not a digit of base58"),
        ({"nonAvvmBalances": {"": "1"}}, "not a Byron address"),
        ({"nonAvvmBalances": {BYRON_TEXT[:-1] + "f": "1"}}, "not a Byron address, or its checksum is wrong"),
        ({"nonAvvmBalances": {"A" * 100_000: "1"}}, "100000 characters are too many for base58"),
        ({"nonAvvmBalances": {BYRON_TEXT: "much"}}, "invalid literal"),
        ({"nonAvvmBalances": {BYRON_TEXT: "-1"}}, "has -1 lovelace"),
        ({"nonAvvmBalances": {BYRON_TEXT: str(2**64)}}, "has 18446744073709551616 lovelace"),
        ({"nonAvvmBalances": {BYRON_TEXT: 1.5}}, "Expected `int | str`, got `float`"),
        ({"avvmDistr": {VOUCHER: "1"}}, "no protocolMagic"),
        ({"avvmDistr": {VOUCHER[:-4]: "1"}, "protocolMagic": 1}, "has 30 bytes, expected 32"),
        ({"avvmDistr": {VOUCHER[:-1]: "1"}, "protocolMagic": 1}, "padding"),
        ({"initialFunds": {"xy": 1}}, "non-hexadecimal"),
        ({"initialFunds": {}, "epochLength": 0}, "epoch_slots is 0"),
        ({"initialFunds": {}, "systemStart": "yesterday"}, "Invalid isoformat"),
        ("[" * 100_000, "genesis.json"),
    ],
)
def test_malformed_genesis_files_are_refused(tmp_path: Path, document: Any, what: str) -> None:
    file = write(tmp_path, document)
    with pytest.raises(GenesisError) as caught:
        read_genesis([file])
    assert what in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    with pytest.raises(GenesisError, match=r"none\.json"):
        read_genesis([tmp_path / "none.json"])

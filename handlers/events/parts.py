"""What messages are made of: constrained numbers and byte strings, points, outputs, transactions, blocks' issuers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from handlers.meaning import about
from storage import keys

Hash32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Hash28 = Annotated[bytes, Meta(min_length=28, max_length=28)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Count = Annotated[int, Meta(ge=0)]  # values, quantities, slots: 0 … 2^64-1, the upper bound is the encodings' own
Height = Annotated[int, Meta(ge=0, le=keys.HIGHEST)]
OutPoint = tuple[Hash32, U32]
Asset = tuple[Hash28, Annotated[bytes, Meta(max_length=32)], Count]
Header = Annotated[bytes, Meta(min_length=80, max_length=80)]
Spent = tuple[Count, bytes]


class Point(Struct, frozen=True, gc=False):
    """A block's place in the chain."""

    height: Annotated[Count, about("Height of the block.")]
    slot: Annotated[Count, about("Its slot; its height on a chain without slots.")]
    hash: Annotated[Hash32, about("Its hash.")]


class Output(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What a transaction creates."""

    address: Annotated[bytes, about("The raw address (Cardano) or the locking script (Bitcoin).")]
    value: Annotated[Count, about("Lovelace or satoshi.")]
    assets: Annotated[list[Asset], about("Native assets, as `[policy, name, quantity]`.")] = []
    datum_hash: Annotated[bytes | None, about("Hash of the datum.")] = None
    inline_datum: Annotated[bytes | None, about("The datum itself, CBOR in the bytes of the chain.")] = None
    script_ref: Annotated[
        bytes | None, about("The reference script: CBOR `[language, script]` in the bytes of the chain.")
    ] = None
    script_ref_hash: Annotated[
        bytes | None, about("Hash of the reference script; derived from `script_ref` where it is left out.")
    ] = None
    spendable: Annotated[
        bool,
        about("False: it is unspendable (`OP_RETURN`). It counts in the index of outputs and is not stored."),
    ] = True


class Tx(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One transaction, of a block or submitted."""

    txid: Annotated[Hash32, about("The transaction's id.")]
    inputs: Annotated[list[OutPoint], about("Outputs that it spends, as `[txid, index]`.")] = []
    outputs: Annotated[list[Output], about("Outputs that it creates; their index is their place in this list.")] = []
    valid: Annotated[
        bool,
        about(
            "False: a phase-2 failure (Cardano). `collateral` is spent instead of `inputs`, and of outputs only "
            "`collateral_return` is created."
        ),
    ] = True
    collateral: Annotated[list[OutPoint], about("Collateral inputs; spent only if `valid` is false.")] = []
    references: Annotated[list[OutPoint], about("Reference inputs; never spent.")] = []
    collateral_return: Annotated[
        Output | None, about("Created if `valid` is false, at the index that is the number of `outputs`.")
    ] = None
    coinbase: Annotated[
        bool, about("Whether it is a block's first, which spends nothing; its outputs have to mature (Bitcoin).")
    ] = False
    fee: Annotated[int | None, about("Fee.")] = None
    size: Annotated[int | None, about("Bytes of the whole transaction.")] = None
    subtree_index: Annotated[int | None, about("Its subtree in the block, on chains that have them.")] = None
    raw: Annotated[bytes | None, about("The whole transaction; kept with its record, if it has one.")] = None
    version: Annotated[int | None, about("The transaction's version; kept with its record.")] = None
    lock_time: Annotated[int | None, about("Its lock time; kept with its record.")] = None
    previous: Annotated[
        list[Spent | None] | None,
        about(
            "What it spends, as far as the sender knows: `[value, script]` (its address or locking script) or null, "
            "one entry for each input. Kept with its record."
        ),
    ] = None
    datums: Annotated[
        list[bytes],
        about("Datums among its witnesses, in the bytes of the chain; found by the BLAKE2b-256 hash of these bytes."),
    ] = []


class NetworkTip(Struct, frozen=True, omit_defaults=True):
    """The tip of the network, as the client sees it."""

    height: Annotated[Height, about("Height of the network's last block.")]
    slot: Annotated[Count | None, about("Its slot; checked and not used.")] = None


class Issuer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a Cardano feeder knows of a block's issuer: its keys and its operational certificate."""

    vkey: Annotated[Hash32 | None, about("Its verification key.")] = None
    vrf_vkey: Annotated[Hash32 | None, about("Its VRF verification key.")] = None
    op_cert: Annotated[
        bytes | None, about("Its operational certificate: hot key or the whole, as the feeder has it.")
    ] = None
    op_cert_counter: Annotated[Count | None, about("The certificate's counter.")] = None


class RollbackPoint(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where to go back to. One of its fields has to be there; `hash` decides where it is given."""

    slot: Annotated[Count | None, about("Without `hash`: the last block whose slot is at most this one.")] = None
    hash: Annotated[Hash32 | None, about("Hash of the block.")] = None
    height: Annotated[Count | None, about("Without `hash` and `slot`: the block of this height.")] = None


class GenesisOutput(Struct, frozen=True, forbid_unknown_fields=True):
    """One output that exists before the first block."""

    txid: Annotated[Hash32, about("Id of the transaction that it counts as an output of.")]
    index: Annotated[U32, about("Its index.")]
    output: Annotated[Output, about("The output.")]


class ChainName(Struct, frozen=True):
    """Which chain a daemon keeps."""

    family: Annotated[str, about("`cardano`, `bitcoin` or `raw` (`chain.family`).")]
    network: Annotated[str, about("The network's name (`chain.network`).")]

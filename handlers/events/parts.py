"""Parts of messages: constrained numbers and byte strings, points, outputs, transactions, blocks' issuers."""

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
    """A block of the chain."""

    height: Annotated[Count, about("Height of the block.")]
    slot: Annotated[Count, about("Slot of the block; on a chain without slots, its height.")]
    hash: Annotated[Hash32, about("Hash of the block.")]


class Output(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An output of a transaction."""

    address: Annotated[bytes, about("Raw address (Cardano) or locking script (Bitcoin).")]
    value: Annotated[Count, about("Value in lovelace or satoshi.")]
    assets: Annotated[list[Asset], about("Native assets, as `[policy, name, quantity]`.")] = []
    datum_hash: Annotated[bytes | None, about("Hash of the datum.")] = None
    inline_datum: Annotated[bytes | None, about("Inline datum: its original CBOR bytes.")] = None
    script_ref: Annotated[bytes | None, about("Reference script: the original CBOR bytes of `[language, script]`.")] = (
        None
    )
    script_ref_hash: Annotated[
        bytes | None, about("Hash of the reference script. Without it, it is derived from `script_ref`.")
    ] = None
    spendable: Annotated[
        bool,
        about("False: the output is unspendable (`OP_RETURN`). It has an index, but is not stored."),
    ] = True


class Details(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """Counts and sums of what a Cardano transaction contains besides inputs and outputs.

    They are stored until a rollback can no longer undo the block; with `utxo.index.history` they are kept.
    """

    invalid_before: Annotated[Count | None, about("First slot in which the transaction is valid.")] = None
    invalid_hereafter: Annotated[Count | None, about("First slot in which it is no longer valid.")] = None
    withdrawal_count: Annotated[Count, about("Number of withdrawals.")] = 0
    withdrawn: Annotated[Count, about("Sum of the withdrawals, in lovelace.")] = 0
    mir_cert_count: Annotated[Count, about("Number of certificates that move instantaneous rewards.")] = 0
    delegation_count: Annotated[Count, about("Number of delegations to stake pools.")] = 0
    stake_cert_count: Annotated[Count, about("Number of registrations and deregistrations of stake credentials.")] = 0
    pool_update_count: Annotated[Count, about("Number of registrations of stake pools.")] = 0
    pool_retire_count: Annotated[Count, about("Number of retirements of stake pools.")] = 0
    asset_mint_or_burn_count: Annotated[Count, about("Number of assets that it mints or burns.")] = 0
    redeemer_count: Annotated[Count, about("Number of redeemers.")] = 0
    treasury_donation: Annotated[Count, about("Donation to the treasury, in lovelace.")] = 0


class Tx(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A transaction, in a block or submitted."""

    txid: Annotated[Hash32, about("Id of the transaction.")]
    inputs: Annotated[list[OutPoint], about("Outputs that the transaction spends, as `[txid, index]`.")] = []
    outputs: Annotated[
        list[Output], about("Outputs that the transaction creates. Their index is their position in this list.")
    ] = []
    valid: Annotated[
        bool,
        about(
            "False: the transaction failed phase 2 (Cardano). It spends `collateral` instead of `inputs`, and creates "
            "`collateral_return` instead of `outputs`."
        ),
    ] = True
    collateral: Annotated[list[OutPoint], about("Collateral inputs. They are spent only if `valid` is false.")] = []
    references: Annotated[list[OutPoint], about("Reference inputs. They are never spent.")] = []
    collateral_return: Annotated[
        Output | None, about("Output that is created if `valid` is false. Its index is the length of `outputs`.")
    ] = None
    coinbase: Annotated[
        bool, about("Whether it is a coinbase (Bitcoin): it spends nothing, and its outputs have to mature.")
    ] = False
    fee: Annotated[int | None, about("Fee of the transaction.")] = None
    size: Annotated[int | None, about("Size of the whole transaction in bytes.")] = None
    subtree_index: Annotated[int | None, about("Index of its subtree in the block, on chains that have subtrees.")] = (
        None
    )
    raw: Annotated[
        bytes | None, about("Bytes of the whole transaction. They are stored with its record, if it has one.")
    ] = None
    version: Annotated[int | None, about("Version of the transaction. It is stored with its record.")] = None
    lock_time: Annotated[int | None, about("Lock time of the transaction. It is stored with its record.")] = None
    previous: Annotated[
        list[Spent | None] | None,
        about(
            "One entry for each input: `[value, script]` (address or locking script) of the spent output, or "
            "null if the "
            "sender does not have it. It is stored with the record."
        ),
    ] = None
    datums: Annotated[
        list[bytes],
        about(
            "Original bytes of the datums among its witnesses. A datum is found by the BLAKE2b-256 hash of these bytes."
        ),
    ] = []
    place: Annotated[
        U32 | None, about("Position in the whole block, if `shard` of the block says that the message is a part of it.")
    ] = None
    input_places: Annotated[
        list[U32] | None,
        about(
            "Ascending positions of `inputs` (`collateral` if `valid` is false) among those of the whole transaction, "
            "if only the part of a shard was sent."
        ),
    ] = None
    details: Annotated[
        Details | None,
        about("Counts and sums of its other contents (Cardano). They are stored for transactions in blocks."),
    ] = None


class NetworkTip(Struct, frozen=True, omit_defaults=True):
    """The tip of the network."""

    height: Annotated[Height, about("Height of the network's last block.")]
    slot: Annotated[Count | None, about("Slot of that block. It is validated and not used.")] = None


class Issuer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The issuer of a Cardano block. The feeder sends the fields that it has."""

    vkey: Annotated[Hash32 | None, about("Verification key.")] = None
    vrf_vkey: Annotated[Hash32 | None, about("VRF verification key.")] = None
    op_cert: Annotated[bytes | None, about("Operational certificate: its hot key, or all of it.")] = None
    op_cert_counter: Annotated[Count | None, about("Counter of the certificate.")] = None


class RollbackPoint(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A block to roll back to. At least one field is required; if there is a `hash`, the other fields are not used."""

    slot: Annotated[Count | None, about("Without `hash`: the last block whose slot is at most this slot.")] = None
    hash: Annotated[Hash32 | None, about("Hash of the block.")] = None
    height: Annotated[Count | None, about("Without `hash` and `slot`: the block of this height.")] = None


class GenesisOutput(Struct, frozen=True, forbid_unknown_fields=True):
    """One output that exists before the first block."""

    txid: Annotated[Hash32, about("Id of the transaction to which the output belongs.")]
    index: Annotated[U32, about("Index of the output.")]
    output: Annotated[Output, about("The output.")]


class ChainName(Struct, frozen=True):
    """The chain of a daemon."""

    family: Annotated[str, about("`cardano`, `bitcoin` or `raw` (`chain.family`).")]
    network: Annotated[str, about("Name of the network (`chain.network`).")]

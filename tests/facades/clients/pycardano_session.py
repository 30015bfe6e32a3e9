"""What a wallet does with pycardano: pay, mint, lock an output with a script, and spend it.

The two URLs are those of Blockfrost's and of Kupo's API; without the second one outputs come from Blockfrost's. It
says `submitted TXID` and waits for a line, after which that transaction is in a block.
"""

import sys
import time

from pycardano import (
    Address,
    BlockFrostChainContext,
    MultiAsset,
    Network,
    PaymentSigningKey,
    PaymentVerificationKey,
    PlutusV2Script,
    Redeemer,
    ScriptAll,
    ScriptPubkey,
    TransactionBuilder,
    TransactionOutput,
    Unit,
    Value,
    plutus_script_hash,
)
from pycardano.backend.kupo import KupoChainContextExtension

key = PaymentSigningKey.from_primitive(bytes(range(32)))
owner = PaymentVerificationKey.from_signing_key(key).hash()
address = Address(owner, network=Network.TESTNET)
other = Address(
    PaymentVerificationKey.from_signing_key(PaymentSigningKey.from_primitive(bytes(32))).hash(), network=Network.TESTNET
)
script = PlutusV2Script(bytes.fromhex("4e4d01000033222220051200120011"))
script_address = Address(plutus_script_hash(script), network=Network.TESTNET)


def say(text):
    print(text, flush=True)


def wait():
    assert sys.stdin.readline()


say(f"address {address}")
wait()
context = BlockFrostChainContext("any", base_url=sys.argv[1])
if len(sys.argv) > 2:
    context = KupoChainContextExtension(context, kupo_url=sys.argv[2])


def until(found):
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end, "the transaction is not confirmed"
        time.sleep(0.05)


def submit(builder, where):
    """Submit, and wait until an output of the transaction is at an address."""
    signed = builder.build_and_sign([key], change_address=address)
    context.submit_tx(signed)
    say(f"submitted {signed.id}")
    wait()
    until(lambda: any(str(utxo.input.transaction_id) == str(signed.id) for utxo in context.utxos(where)))
    return signed


def begun():
    builder = TransactionBuilder(context)
    builder.add_input_address(address)
    return builder


payment = begun()
payment.add_output(TransactionOutput(other, 3_000_000))
submit(payment, other)

policy = ScriptAll([ScriptPubkey(owner)])
minted = MultiAsset.from_primitive({policy.hash().payload: {b"coin": 5}})
mint = begun()
mint.mint, mint.native_scripts = minted, [policy]
mint.add_output(TransactionOutput(address, Value(3_000_000, minted)))
submit(mint, address)
coin = next(iter(minted[policy.hash()]))
assets = [utxo.output.amount.multi_asset for utxo in context.utxos(address)]
held = sum(each[policy.hash()][coin] for each in assets if policy.hash() in each)
assert held == 5, held

locked = begun()
locked.add_output(TransactionOutput(script_address, 5_000_000, datum=Unit()))
submit(locked, script_address)

[utxo] = context.utxos(script_address)
assert utxo.output.datum is not None
spend = begun()
spend.add_script_input(utxo, script, redeemer=Redeemer(Unit()))
spend.add_output(TransactionOutput(other, 4_000_000))
spent = submit(spend, other)
units = spent.transaction_witness_set.redeemer
assert context.utxos(script_address) == []
say(f"done {context.last_block_slot} {units is not None}")

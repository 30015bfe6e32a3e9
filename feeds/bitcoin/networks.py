"""The differences between the networks of the family."""

from msgspec import Struct


class Network(Struct, frozen=True):
    """The constants of a network; a private one (a custom signet) is one more of these.

    `genesis` is in display order. `proof_limit` is the easiest target that a header may claim. A block longer than
    `max_block_bytes` is refused before it is read. `genesis_spendable` states whether the first block's coinbase counts
    as an ordinary output: on these networks it does not, a node's set has never had it. `rpc_port` is where a node's
    RPC is by default.
    """

    name: str
    magic: bytes
    genesis: bytes
    proof_limit: int
    max_block_bytes: int = 4_000_000
    genesis_spendable: bool = False
    rpc_port: int = 8332


MAINNET = Network(
    name="mainnet",
    magic=bytes.fromhex("f9beb4d9"),
    genesis=bytes.fromhex("000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"),
    proof_limit=(1 << 224) - 1,
)
TESTNET3 = Network(
    name="testnet3",
    magic=bytes.fromhex("0b110907"),
    genesis=bytes.fromhex("000000000933ea01ad0ee984209779baaec3ced90fa3f408719526f8d77f4943"),
    proof_limit=(1 << 224) - 1,
    rpc_port=18332,
)
TESTNET4 = Network(
    name="testnet4",
    magic=bytes.fromhex("1c163f28"),
    genesis=bytes.fromhex("00000000da84f2bafbbc53dee25a72ae507ff4914b867c565be350b0da8bf043"),
    proof_limit=(1 << 224) - 1,
    rpc_port=48332,
)
SIGNET = Network(
    name="signet",
    magic=bytes.fromhex("0a03cf40"),
    genesis=bytes.fromhex("00000008819873e925422c1ff0f99f7cc9bbb232af63a077a480a3633bee1ef6"),
    proof_limit=0x377AE << 216,
    rpc_port=38332,
)
REGTEST = Network(
    name="regtest",
    magic=bytes.fromhex("fabfb5da"),
    genesis=bytes.fromhex("0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206"),
    proof_limit=(1 << 255) - 1,
    rpc_port=18443,
)
NETWORKS = {network.name: network for network in (MAINNET, TESTNET3, TESTNET4, SIGNET, REGTEST)}

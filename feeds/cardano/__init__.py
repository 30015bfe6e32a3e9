"""Conversion of Cardano blocks, Byron to Conway, to events; pure decoding, no socket.

`chunks.read_chain` follows a node's immutable database, `block.decode_block` reads one block, `genesis.read_genesis`
reads what existed before the first one, `eras` turns slots into epochs and time.
"""

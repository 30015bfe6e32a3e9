"""Conversion of Bitcoin-family blocks to events; pure decoding, no socket.

`source.Chain` is the best chain of a node's blk*.dat or of files of hex,
`block.decode_block` reads one block, `networks` lists the networks. Errors are a `SourceError`.

Byte order: events carry txids and block hashes in *display* order, the bytes of the usual hex, so that every hex
that an operator sees is the one that an explorer shows. Blocks on disk and on the wire of a node have them reversed;
they are reversed here, once, and no other package sees the other order.
"""

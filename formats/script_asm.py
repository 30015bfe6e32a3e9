"""Bitcoin scripts as text, and the type of a locking script, with Esplora's names."""

from __future__ import annotations

_SMALL = {0x00: "OP_0", 0x4F: "OP_PUSHNUM_NEG1", **{0x50 + n: f"OP_PUSHNUM_{n}" for n in range(1, 17)}}
_WIDE = {0x4C: ("OP_PUSHDATA1", 1), 0x4D: ("OP_PUSHDATA2", 2), 0x4E: ("OP_PUSHDATA4", 4)}
_NAMES = [
    "RESERVED",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    ".",
    "NOP",
    "VER",
    "IF",
    "NOTIF",
    "VERIF",
    "VERNOTIF",
    "ELSE",
    "ENDIF",
    "VERIFY",
    "RETURN",
    "TOALTSTACK",
    "FROMALTSTACK",
    "2DROP",
    "2DUP",
    "3DUP",
    "2OVER",
    "2ROT",
    "2SWAP",
    "IFDUP",
    "DEPTH",
    "DROP",
    "DUP",
    "NIP",
    "OVER",
    "PICK",
    "ROLL",
    "ROT",
    "SWAP",
    "TUCK",
    "CAT",
    "SUBSTR",
    "LEFT",
    "RIGHT",
    "SIZE",
    "INVERT",
    "AND",
    "OR",
    "XOR",
    "EQUAL",
    "EQUALVERIFY",
    "RESERVED1",
    "RESERVED2",
    "1ADD",
    "1SUB",
    "2MUL",
    "2DIV",
    "NEGATE",
    "ABS",
    "NOT",
    "0NOTEQUAL",
    "ADD",
    "SUB",
    "MUL",
    "DIV",
    "MOD",
    "LSHIFT",
    "RSHIFT",
    "BOOLAND",
    "BOOLOR",
    "NUMEQUAL",
    "NUMEQUALVERIFY",
    "NUMNOTEQUAL",
    "LESSTHAN",
    "GREATERTHAN",
    "LESSTHANOREQUAL",
    "GREATERTHANOREQUAL",
    "MIN",
    "MAX",
    "WITHIN",
    "RIPEMD160",
    "SHA1",
    "SHA256",
    "HASH160",
    "HASH256",
    "CODESEPARATOR",
    "CHECKSIG",
    "CHECKSIGVERIFY",
    "CHECKMULTISIG",
    "CHECKMULTISIGVERIFY",
    "NOP1",
    "CLTV",
    "CSV",
    "NOP4",
    "NOP5",
    "NOP6",
    "NOP7",
    "NOP8",
    "NOP9",
    "NOP10",
    "CHECKSIGADD",
]
_OPCODES = {0x50 + n: f"OP_{name}" for n, name in enumerate(_NAMES) if name != "."} | _SMALL


def assembly(script: bytes) -> str:
    """Return a script as opcodes and pushed bytes. What a push lacks at the end is named, as Esplora does."""
    words, at = list[str](), 0
    while at < len(script):
        opcode = script[at]
        at += 1
        if 1 <= opcode <= 75:
            words.append(f"OP_PUSHBYTES_{opcode}")
            size = opcode
        elif opcode in _WIDE:
            name, width = _WIDE[opcode]
            words.append(name)
            if at + width > len(script):
                words.append("<unexpected end>")
                break
            size = int.from_bytes(script[at : at + width], "little")
            at += width
        else:
            words.append(_OPCODES.get(opcode, f"OP_RETURN_{opcode}" if opcode > 0xBA else f"OP_{opcode}"))
            continue
        if at + size > len(script):
            words.append("<push past end>")
            break
        words.append(script[at : at + size].hex())
        at += size
    return " ".join(words)


def kind(script: bytes) -> str:
    """Return the kind of a locking script."""
    match script[:1], len(script):
        case (b"", _):
            return "empty"
        case (b"\x6a", _):
            return "op_return"
        case (b"\x76", 25) if script[:3] == b"\x76\xa9\x14" and script[23:] == b"\x88\xac":
            return "p2pkh"
        case (b"\xa9", 23) if script[1] == 0x14 and script[22] == 0x87:
            return "p2sh"
        case (b"\x00", 22) if script[1] == 0x14:
            return "v0_p2wpkh"
        case (b"\x00", 34) if script[1] == 0x20:
            return "v0_p2wsh"
        case (b"\x51", 34) if script[1] == 0x20:
            return "v1_p2tr"
        case (b"\x51", 4) if script == b"\x51\x02\x4e\x73":
            return "p2a"
        case (b"\x21", 35) | (b"\x41", 67) if script[-1] == 0xAC:
            return "p2pk"
    if script[-1] == 0xAE and 0x51 <= script[0] <= 0x60 and len(script) > 3:
        return "multisig"
    return "unknown"

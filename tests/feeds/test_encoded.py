"""Messages that pass through unchanged: the frame of a body with one more field."""

from __future__ import annotations

import msgspec
import pytest

from feeds.encoded import Encoded
from feeds.errors import FeedError
from handlers.events import BlockApplied
from handlers.wire import LENGTH, decode, encode


@pytest.mark.parametrize("seq", [1, 127, 128, 1 << 20, 1 << 40])
def test_the_frame_of_a_body_has_its_number(seq: int) -> None:
    block = BlockApplied(height=5, hash=bytes(32), slot=9, era="x")
    frame = Encoded(encode(block, "frames")[LENGTH.size :], None, None).frame(seq)
    assert LENGTH.unpack_from(frame) == (len(frame) - LENGTH.size,)
    assert decode(frame[LENGTH.size :], "frames") == msgspec.structs.replace(block, seq=seq)


@pytest.mark.parametrize("count", [0, 14, 15, 16, 300])
def test_maps_of_any_length_take_one_more_field(count: int) -> None:
    fields = {str(n): n for n in range(count)}
    frame = Encoded(msgspec.msgpack.encode(fields), None, None).frame(7)
    assert msgspec.msgpack.decode(frame[LENGTH.size :]) == fields | {"seq": 7}


@pytest.mark.parametrize("body", [b"", msgspec.msgpack.encode([1])])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(FeedError, match="not an event"):
        Encoded(body, None, None).frame(1)

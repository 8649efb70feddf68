"""`BlockDecoder` beside the decoder of the `hpack` package."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.frontends.http2.frames import ErrorCode, Http2Error
from slacktide.frontends.http2.header_blocks import BlockDecoder

NAMES = st.sampled_from([b":method", b":path", b"te", b"x-a", b"x-b", b"cookie", b""])
VALUES = st.one_of(st.sampled_from([b"POST", b"/", b"trailers"]), st.binary(max_size=300))
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
PIECES = st.one_of(
    st.sampled_from(
        (
            b"\x20",
            b"\x3f\xe1\x1f",
            b"\x3f\x45",
            b"\x82",
            b"\xbe",
            b"\xbf",
            b"\x40\x01a\x01b",
            b"\x00\x01a\x82\x1f\x0f",
            b"\x7e\x01c",
            b"\xff\x00",
            b"\xff\x80\x00",
        )
    ),
    st.binary(min_size=1, max_size=6),
)


@given(
    heads=st.lists(st.tuples(FIELDS, st.booleans()), min_size=1, max_size=8),
    sizes=st.lists(st.sampled_from([0, 64, 200, 4096]), min_size=8, max_size=8),
)
def test_blocks_that_hpack_encodes_are_decoded(heads, sizes):
    encoder, decoder = hpack.Encoder(), BlockDecoder(1 << 20)
    for (fields, huffman), size in zip(heads, sizes, strict=False):
        encoder.header_table_size = size
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields


@given(blocks=st.lists(st.lists(PIECES, max_size=8).map(b"".join), min_size=1, max_size=6))
def test_any_block_is_read_as_hpack_reads_it_or_refused(blocks):
    decoder, reference = BlockDecoder(32_768), hpack.Decoder(32_768)
    for block in blocks:
        try:
            fields = decoder.decode(block)
        except Http2Error:
            # hpack takes any number of table size updates, and integers of more octets.
            if block[:1] < b"\x20" and b"\x80\x80" not in block:
                with pytest.raises((hpack.HPACKError, IndexError)):
                    reference.decode(block, raw=True)
            return
        assert fields == [tuple(pair) for pair in reference.decode(block, raw=True)]


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x20" * 3, ErrorCode.COMPRESSION_ERROR),
        (b"\x20" * 32_768, ErrorCode.COMPRESSION_ERROR),
        (b"\x82\x20", ErrorCode.COMPRESSION_ERROR),
        (b"\x3f\xe2\x1f", ErrorCode.COMPRESSION_ERROR),
        (b"\x80", ErrorCode.COMPRESSION_ERROR),
        (b"\xbe", ErrorCode.COMPRESSION_ERROR),
        (b"\xff" + b"\x80" * 5 + b"\0", ErrorCode.COMPRESSION_ERROR),
        (b"\xff" + b"\xff" * 32_000, ErrorCode.COMPRESSION_ERROR),
        (b"\0", ErrorCode.COMPRESSION_ERROR),
        (b"\0\x05abc", ErrorCode.COMPRESSION_ERROR),
        (b"\0\x01a\x7f\xff\xff\xff\x07", ErrorCode.COMPRESSION_ERROR),
        (b"\0\x01a\x81\x00", ErrorCode.COMPRESSION_ERROR),
        (b"\0\x01a\x84\xff\xff\xff\xff", ErrorCode.COMPRESSION_ERROR),
        (b"\0\x01a\0" * 1000, ErrorCode.ENHANCE_YOUR_CALM),
        (b"\x40\x01x\x7f\x81\x1e" + b"v" * 3968 + b"\xbe" * 9, ErrorCode.ENHANCE_YOUR_CALM),
    ],
)
def test_a_block_that_may_not_be_ends_the_connection(block, code):
    with pytest.raises(Http2Error) as caught:
        BlockDecoder(32_768).decode(block)
    assert caught.value.code is code
    assert caught.value.message

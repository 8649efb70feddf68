"""`BlockDecoder`: decodes the header blocks of a connection into fields (RFC 7541 §6).

The tables and the Huffman code come from the `hpack` package. Its decoder is not used because it
copies the rest of a block for each field and accepts any number of table size updates: a block of
32 KiB could cost more than a hundred times what it does here.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from slacktide.frontends.http2.frames import ErrorCode, Http2Error

TABLE_BYTES: Final = 4096
"""Size of the dynamic table: the default, which our SETTINGS do not change."""
MAX_TABLE_SIZES: Final = 2
"""Maximum table size updates in a block: the smallest size since the last block, and the current
one (RFC 7541 §4.2)."""
FIELD_BYTES: Final = 32
"""Overhead counted for each field (RFC 7541 §4.1)."""
_MOST_OCTETS: Final = 4
"""Maximum octets of an integer after its prefix."""
_UNREADABLE: Final = "a header block cannot be read"

Fields = list[tuple[bytes, bytes]]


class BlockDecoder:
    """Decodes blocks in order of arrival. After an error the connection cannot continue."""

    __slots__ = ("_at", "_block", "_max_list", "_table", "changes")

    def __init__(self, max_list: int) -> None:
        """`max_list`: maximum bytes of a block's fields, counting `FIELD_BYTES` for each."""
        self._max_list = max_list
        self._table = HeaderTable()
        self._block, self._at = b"", 0
        self.changes = 0
        """Number of changes to the table."""

    def decode(self, block: bytes) -> Fields:
        """Decode a complete block. Raises Http2Error."""
        self._block, self._at = block, 0
        try:
            return self._fields()
        except (HPACKError, IndexError):
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, _UNREADABLE) from None

    def _fields(self) -> Fields:
        block, table = self._block, self._table
        fields: Fields = []
        size = table_sizes = 0
        while self._at < len(block):
            first = block[self._at]
            if first & 0x80:
                name, value = table.get_by_index(self._integer(0x7F))
            elif first & 0xE0 == 0x20:
                table_sizes += 1
                limit = self._integer(0x1F)
                if fields or table_sizes > MAX_TABLE_SIZES or limit > TABLE_BYTES:
                    message = "an invalid table size update"
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, message)
                table.maxsize = limit
                self.changes += 1
                continue
            else:
                index = self._integer(0x3F if first & 0x40 else 0x0F)
                name = table.get_by_index(index)[0] if index else self._string()
                value = self._string()
                if first & 0x40:
                    table.add(name, value)
                    self.changes += 1
            size += FIELD_BYTES + len(name) + len(value)
            if size > self._max_list:
                message = "a header list is far beyond the limit"
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, message)
            fields.append((name, value))
        return fields

    def _integer(self, mask: int) -> int:
        """Decode an integer with a prefix of the bits in `mask` (RFC 7541 §5.1)."""
        block, at = self._block, self._at
        number = block[at] & mask
        at += 1
        if number == mask:
            shift, octet = 0, 0x80
            while octet & 0x80:
                if shift == 7 * _MOST_OCTETS:
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, _UNREADABLE)
                octet = block[at]
                at += 1
                number += (octet & 0x7F) << shift
                shift += 7
        self._at = at
        return number

    def _string(self) -> bytes:
        """Decode the next string (RFC 7541 §5.2)."""
        block = self._block
        huffman = block[self._at] & 0x80
        length = self._integer(0x7F)
        begin, end = self._at, self._at + length
        if end > len(block):
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, _UNREADABLE)
        self._at = end
        return decode_huffman(block[begin:end]) if huffman else block[begin:end]

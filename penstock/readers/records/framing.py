"""How records lie in a file: TFRecord's framing with checksums, OFRecord's with a bare length.

TFRecord: `u64 length | u32 masked crc of the length | payload | u32 masked crc of the payload`.
OFRecord: `i64 length | payload`. Both are little endian, without a magic number or an index.
Checksums are CRC-32C (Castagnoli), masked as TensorFlow masks them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from penstock._checksums import masked_crc32c
from penstock._files import replacing
from penstock.readers._errors import RecordError

_LENGTH = struct.Struct("<Q")
_LENGTH_AND_CRC = struct.Struct("<QI")
_CRC = struct.Struct("<I")
# zlib's window of 32 KiB; 16 more says that the header is gzip's.
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}


class FramingError(RecordError):
    """The bytes around a payload are damaged: a length, a checksum, or the end of the file."""


@dataclass(frozen=True, kw_only=True)
class Framing:
    """The bytes around each payload; a longer one than `max_payload_bytes` counts as damage."""

    name: str
    has_crc: bool
    max_payload_bytes: int

    @property
    def header_bytes(self) -> int:
        """Return the bytes before a payload."""
        return 12 if self.has_crc else 8

    @property
    def overhead_bytes(self) -> int:
        """Return the bytes of a record that are not payload."""
        return 16 if self.has_crc else 8

    def frame(self, payload: bytes) -> bytes:
        """Return one framed record.

        >>> TFRECORD.frame(b"abc").hex()
        '0300000000000000b099490e6162636e57f121'
        """
        if len(payload) > self.max_payload_bytes:
            raise FramingError(
                f"{self.name} record got {len(payload)} bytes, expected at most "
                f"{self.max_payload_bytes}. Split the record."
            )
        length = _LENGTH.pack(len(payload))
        if not self.has_crc:
            return length + payload
        header = length + _CRC.pack(masked_crc32c(length))
        return header + payload + _CRC.pack(masked_crc32c(payload))

    def payload_length(self, header: bytes) -> int:
        """Return the payload's length from the `header_bytes` before it."""
        if len(header) < self.header_bytes:
            raise self.build_truncation_error(f"{len(header)} of {self.header_bytes} header bytes")
        if not self.has_crc:
            (length,) = _LENGTH.unpack(header)
        else:
            length, crc = _LENGTH_AND_CRC.unpack(header)
            # Before the length is believed: it says where the next record is looked for.
            what = "The file is damaged, compressed, or of another format"
            self._check_crc("length", header[:8], crc, what, "rest of it")
        if length > self.max_payload_bytes:
            raise FramingError(
                f"{self.name} length got {length} bytes, expected 0 to {self.max_payload_bytes}. "
                "The file is damaged or of another format. Write it again, or pass on_error='skip' "
                "to leave the rest of it out."
            )
        return length

    def _check_crc(self, part: str, content: bytes, crc: int, what: str, left_out: str) -> None:
        if (actual := masked_crc32c(content)) != crc:
            raise FramingError(
                f"{self.name} {part} got checksum {actual:08x}, expected {crc:08x} as stored. "
                f"{what}. Write it again, or pass on_error='skip' to leave the {left_out} out."
            )

    def payload(self, record: bytes, length: int) -> bytes:
        """Return the payload of one whole framed record whose length the index says is `length`."""
        if len(record) != length + self.overhead_bytes:
            raise self.build_truncation_error(
                f"{len(record)} of {length + self.overhead_bytes} bytes"
            )
        # The header is checked again, as the file may have changed since it was indexed.
        num_bytes = self.payload_length(record[: self.header_bytes])
        if num_bytes != length:
            raise FramingError(
                f"{self.name} length got {num_bytes} bytes, expected {length} as indexed. The file "
                "changed while it was read. Start again when nothing writes to it."
            )
        payload = record[self.header_bytes : self.header_bytes + length]
        if self.has_crc:
            (crc,) = _CRC.unpack_from(record, self.header_bytes + length)
            self._check_crc("payload", payload, crc, "The record is damaged", "record")
        return payload

    def build_truncation_error(self, got: str) -> FramingError:
        """Return the error of a record at which the file ends."""
        return FramingError(
            f"{self.name} record got {got}, expected a whole record. The file ends inside it. "
            "Write the file again, or pass on_error='skip' to leave the end out."
        )


# The bounds of TensorFlow's and OneFlow's own readers. OFRecord has no checksum, so that its bound
# is all that tells a damaged length.
TFRECORD = Framing(name="TFRecord", has_crc=True, max_payload_bytes=(1 << 31) - 1)
"""TensorFlow's format for `RecordWriter`: a length and a payload, each with a checksum."""

OFRECORD = Framing(name="OFRecord", has_crc=False, max_payload_bytes=64 << 20)
"""OneFlow's format for `RecordWriter`: a length and a payload, without checksums."""


class RecordWriter:
    """Write payloads to a record file, which appears when the writer is closed.

    Records go to a temporary file in the same folder. Closing renames it; an exception inside the
    `with` block removes it. A half-written file is therefore never mistaken for a complete one.

    Args:
      path: the file to write; an existing one is replaced.
      framing: `TFRECORD` or `OFRECORD`.
      compression: `""`, `"GZIP"` or `"ZLIB"`, for TFRecord.

    Raises:
      ValueError: an unknown compression, or a compressed OFRecord.
      OSError: the folder cannot be written to.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with RecordWriter(f"{folder.name}/a.tfrecord") as writer:
    ...     writer.write(b"abc")
    >>> Path(folder.name, "a.tfrecord").read_bytes().hex()
    '0300000000000000b099490e6162636e57f121'
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path,
        *,
        framing: Framing = TFRECORD,
        compression: Literal["", "GZIP", "ZLIB"] = "",
    ) -> None:
        if compression not in ("", *WINDOW_BITS) or (compression and not framing.has_crc):
            raise ValueError(
                f"{framing.name} compression got {compression!r}, expected '', 'GZIP' or 'ZLIB' "
                "for TFRecord, '' for OFRecord. Other readers know no other. Leave it out."
            )
        self.path, self._framing = Path(path), framing
        wbits = WINDOW_BITS.get(compression)
        self._engine: Any = None if wbits is None else zlib.compressobj(wbits=wbits)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._replacing = replacing(self.path)
        self._file = open(self._replacing.__enter__(), "wb")  # noqa: SIM115  (until close)
        self.num_records = 0

    def write(self, payload: bytes) -> None:
        """Append one record.

        Raises:
          FramingError: the payload is longer than readers of the format accept.
        """
        record = self._framing.frame(payload)
        self._file.write(record if self._engine is None else self._engine.compress(record))
        self.num_records += 1

    def close(self) -> None:
        """Finish the file and move it into place. Safe to call twice."""
        if self._file.closed:
            return
        if self._engine is not None:
            self._file.write(self._engine.flush())
        self._file.close()
        self._replacing.__exit__(None, None, None)

    def discard(self) -> None:
        """Remove what was written."""
        if not self._file.closed:
            self._file.close()
            self._replacing.__exit__(GeneratorExit, GeneratorExit(), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # A writer that was never closed leaves no temporary file.
        if hasattr(self, "_file"):
            self.discard()

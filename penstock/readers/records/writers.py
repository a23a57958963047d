"""Writers of record files: whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from penstock.readers.records.framing import TFRECORD, Framing


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
        # zlib's window of 32 KiB; 16 more says that the header is gzip's.
        bits = {"": 0, "GZIP": 31, "ZLIB": 15}.get(compression)
        if bits is None or (bits and not framing.has_crc):
            raise ValueError(
                f"{framing.name} compression got {compression!r}, expected '', 'GZIP' or 'ZLIB' "
                "for TFRecord, '' for OFRecord. Other readers know no other. Leave it out."
            )
        self.path, self._framing = Path(path), framing
        self._engine: Any = zlib.compressobj(wbits=bits) if bits else None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, self._temporary = tempfile.mkstemp(
            prefix=f".{self.path.name[:64]}.", dir=self.path.parent
        )
        self._file = os.fdopen(handle, "wb")
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
        # mkstemp makes files that nobody else may read.
        os.chmod(self._temporary, 0o666 & ~_get_umask())
        os.replace(self._temporary, self.path)

    def discard(self) -> None:
        """Remove what was written."""
        if not self._file.closed:
            self._file.close()
            os.unlink(self._temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # A writer that was never closed leaves no temporary file.
        if hasattr(self, "_file"):
            self.discard()


def _get_umask() -> int:
    """Return the process's umask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask

"""HDF5 files: the groups, data sets and attributes that Keras writes."""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from penstock._weight_files._file import WeightFileError, damaged

if TYPE_CHECKING:
    import h5py

# What h5py raises for damaged files, depending on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)
_EXPECTED = "an HDF5 file that Keras wrote"


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn errors of h5py into a `WeightFileError` about what is being read."""
    try:
        yield
    except WeightFileError:
        raise
    except _HDF5_ERRORS as error:
        raise damaged(f"damage in {what} ({error})", _EXPECTED) from error


@dataclass
class Tree:
    """The objects in an open HDF5 file, by path; the file itself is `""`.

    Links to other files are not followed. The arrays read are together no larger than `num_bytes`,
    as in an `Archive`.
    """

    groups: Mapping[str, h5py.Group]
    datasets: Mapping[str, h5py.Dataset]
    num_bytes: int
    num_read: int = 0

    @classmethod
    def walk(cls, file: h5py.File, num_bytes: int) -> Tree:
        """Collect the objects of an open file; each is met once, so circular links do no harm."""
        import h5py

        groups: dict[str, h5py.Group] = {"": file}
        datasets: dict[str, h5py.Dataset] = {}

        def visit(name: str | bytes, item: object) -> None:
            # h5py leaves a name that it cannot decode as bytes.
            if isinstance(name, bytes):
                raise ValueError(f"the name {name[:40]!r} is no UTF-8")
            if isinstance(item, h5py.Dataset):
                datasets[name] = item
            elif isinstance(item, h5py.Group):
                groups[name] = item

        with reading("its groups"):
            file.visititems(visit)
        return cls(groups, datasets, num_bytes)

    def read_names(self, group: str, attribute: str) -> list[str] | None:
        """Return an attribute that lists names, as Keras splits long lists, or None without it."""
        with reading(f"the attribute {attribute!r} of {group or 'the file'!r}"):
            attributes = self.groups[group].attrs
            if attribute in attributes:
                return _read_strings(attributes, attribute)
            pattern = re.compile(rf"{re.escape(attribute)}(\d{{1,4}})")
            numbers = sorted(int(m[1]) for m in map(pattern.fullmatch, attributes) if m)
            parts = [_read_strings(attributes, f"{attribute}{number}") for number in numbers]
            return [name for part in parts for name in part] if parts else None

    def read_text(self, group: str, attribute: str) -> str | None:
        """Return an attribute that is a string, or None without it."""
        with reading(f"the attribute {attribute!r} of {group!r}"):
            if group not in self.groups or attribute not in self.groups[group].attrs:
                return None
            return next(iter(_read_strings(self.groups[group].attrs, attribute)), None)

    def read_array(self, name: str) -> np.ndarray:
        if name not in self.datasets:
            raise damaged(f"no data set {name!r}", "it, as the file lists it")
        with reading(f"the data set {name!r}"):
            return self._read_checked(name)

    def _read_checked(self, name: str) -> np.ndarray:
        dataset = self.datasets[name]
        if dataset.external or dataset.is_virtual:
            raise WeightFileError(
                f"got a data set {name!r} whose values lie in another file, expected them in this "
                "one. Other files are never opened. Save the weights again with Keras."
            )
        # A data set may be declared of any size and hold nothing, or be compressed a thousandfold.
        self.num_read += 0 if dataset.size is None else dataset.nbytes
        if dataset.size is None or self.num_read > self.num_bytes:
            raise WeightFileError(
                f"got a data set {name!r} of shape {dataset.shape}, expected one no larger than "
                f"the file of {self.num_bytes} bytes, with those before it. It is damaged or "
                "compressed: save the weights again with Keras."
            )
        # HDF5 has no bfloat16: Keras 3 writes it as opaque values of two bytes.
        is_bfloat16 = dataset.dtype == np.dtype("V2")
        if not is_bfloat16 and dataset.dtype.kind not in "fiub":
            raise WeightFileError(
                f"got a data set {name!r} of type {dataset.dtype}, expected numbers. Keras saves "
                "nothing else as weights. Save them again with Keras."
            )
        values = np.asarray(dataset[()])
        if is_bfloat16:
            return values.view(jnp.bfloat16)
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _read_strings(attributes: h5py.AttributeManager, name: str) -> list[str]:
    """Return an attribute that is text or a list of texts, which old files hold as bytes."""
    import h5py

    attribute = attributes.get_id(name)
    # Keras writes an empty list of names as an empty array of floats.
    if 0 in attribute.shape:
        return []
    # The HDF5 library crashes on some types that only damage makes; both kinds of text are safe.
    if not isinstance(attribute.get_type(), h5py.h5t.TypeStringID):
        raise damaged(f"an attribute {name!r} that is no text", "names")
    values = np.atleast_1d(np.asarray(attributes[name])).tolist()
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]


_HEAP = b"GCOL\x01\x00\x00\x00"
"""Signature and version of a global heap."""
_HEADER_BYTES = 16
"""Of a heap, and of each object in it."""
# Where the superblock says how many bytes a length takes, by the superblock's version.
_LENGTH_AT = {b"\x00": 14, b"\x01": 14, b"\x02": 10, b"\x03": 10}


def check_heaps(content: bytes | mmap.mmap) -> None:
    """Raise unless every global heap in a file is whole: objects one after the other to its end.

    They hold names. Two of some thousand files damaged at random sent HDF5 2.0 into an endless
    loop, which Ctrl-C does not end: it never gets past an object of length 0 in such a heap.
    """
    length_at = _LENGTH_AT.get(content[8:9], 0)
    # The sizes of offsets and of lengths: Keras's files have 8 bytes for both.
    if content[length_at - 1 : length_at + 1] != b"\x08\x08":
        raise damaged("damage at byte 8", _EXPECTED)
    begin = content.find(_HEAP)
    while begin >= 0:
        size = int.from_bytes(content[begin + 8 : begin + _HEADER_BYTES], "little")
        if not _HEADER_BYTES <= size <= len(content) - begin:
            raise damaged(f"damage at byte {begin}", _EXPECTED)
        _check_objects(content, begin + _HEADER_BYTES, begin + size)
        begin = content.find(_HEAP, begin + size)


def _check_objects(content: bytes | mmap.mmap, position: int, end: int) -> None:
    """Raise unless the objects of a heap, the last one free space, fill it."""
    # Less than a header at the end is free space.
    while end - position >= _HEADER_BYTES:
        index = int.from_bytes(content[position : position + 2], "little")
        length = int.from_bytes(content[position + 8 : position + _HEADER_BYTES], "little")
        # Index 0 is free space, whose length counts its header.
        if index == 0 and length < _HEADER_BYTES:
            raise damaged(f"damage at byte {position}", _EXPECTED)
        position += length if index == 0 else _HEADER_BYTES + (length + 7) // 8 * 8
    if position > end:
        raise damaged(f"damage at byte {position}", _EXPECTED)

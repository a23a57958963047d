"""HDF5 files: the groups, data sets and attributes that Keras writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import jax.numpy as jnp
import numpy as np

from penstock._weight_files._file import WeightFileError

if TYPE_CHECKING:
    import h5py

# What h5py raises for damaged files, depending on where the damage is.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)

Value = TypeVar("Value")


def call_h5py(read: Callable[[], Value], what: str) -> Value:
    """Return `read()`, with errors of h5py turned into a `WeightFileError`.

    Arguments:
      read: calls h5py.
      what: what is being read, for the message.
    """
    try:
        return read()
    except WeightFileError:
        raise
    except HDF5_ERRORS as error:
        raise WeightFileError(
            f"got damage in {what} ({error}), expected an HDF5 file that Keras wrote. It is cut "
            "off or damaged: download it again."
        ) from error


@dataclass(frozen=True)
class Tree:
    """The objects in an open HDF5 file, by path; links to other files are not followed.

    Arguments:
      groups: h5py's groups; the file itself is `""`.
      datasets: h5py's data sets.
      num_bytes: the size of the file.
    """

    groups: Mapping[str, h5py.Group]
    datasets: Mapping[str, h5py.Dataset]
    num_bytes: int

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

        call_h5py(lambda: file.visititems(visit), "its groups")
        return cls(groups, datasets, num_bytes)

    def read_names(self, group: str, attribute: str) -> list[str] | None:
        """Return an attribute that lists names, as Keras splits long lists, or None without it."""

        def read() -> list[str] | None:
            attributes = self.groups[group].attrs
            if attribute in attributes:
                parts = [_read_strings(attributes, attribute)]
            else:
                pattern = re.compile(rf"{re.escape(attribute)}(\d{{1,4}})")
                numbers = sorted(int(m[1]) for m in map(pattern.fullmatch, attributes) if m)
                parts = [_read_strings(attributes, f"{attribute}{number}") for number in numbers]
                if not parts:
                    return None
            return [name for part in parts for name in part]

        return call_h5py(read, f"the attribute {attribute!r} of {group or 'the file'!r}")

    def read_text(self, group: str, attribute: str) -> str | None:
        """Return an attribute that is a string, or None without it."""

        def read() -> str | None:
            if group not in self.groups or attribute not in self.groups[group].attrs:
                return None
            return next(iter(_read_strings(self.groups[group].attrs, attribute)), None)

        return call_h5py(read, f"the attribute {attribute!r} of {group!r}")

    def read_array(self, name: str) -> np.ndarray:
        """Return a data set of numbers."""
        if name not in self.datasets:
            raise WeightFileError(
                f"got no data set {name!r}, expected it, as the file lists it. It is cut off or "
                "damaged: download it again."
            )
        return call_h5py(lambda: self._read_checked(name), f"the data set {name!r}")

    def _read_checked(self, name: str) -> np.ndarray:
        dataset = self.datasets[name]
        if dataset.external or dataset.is_virtual:
            raise WeightFileError(
                f"got a data set {name!r} whose values lie in another file, expected them in this "
                "one. Other files are never opened. Save the weights again with Keras."
            )
        # A data set may be declared of any size and hold nothing, or be compressed a thousandfold.
        if dataset.size is None or dataset.size * dataset.dtype.itemsize > self.num_bytes:
            raise WeightFileError(
                f"got a data set {name!r} of shape {dataset.shape}, expected one no larger than "
                f"the file of {self.num_bytes} bytes. It is damaged or compressed: save the "
                "weights again with Keras."
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
        raise WeightFileError(
            f"got an attribute {name!r} that is no text, expected names. It is damaged: download "
            "it again."
        )
    values = np.atleast_1d(np.asarray(attributes[name])).tolist()
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]

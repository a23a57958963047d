"""HDF5 files: their groups, data sets and attributes, as far as Keras writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from penstock._weight_files._file import Refusal

# What h5py raises for damaged files, depending on where the damage is.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)

Value = TypeVar("Value")


def guarded(read: Callable[[], Value], what: str) -> Value:
    """Return what a function of h5py's gives, with its errors as ours.

    Arguments:
      read: calls h5py.
      what: what is being read, for the error.
    """
    try:
        return read()
    except Refusal:
        raise
    except HDF5_ERRORS as error:
        raise Refusal(
            f"got damage in {what} ({error}), expected an HDF5 file that Keras wrote. It is cut "
            "off or damaged: download it again."
        ) from error


@dataclass(frozen=True)
class Tree:
    """An open HDF5 file by path: what it really contains, links out of it not followed.

    Arguments:
      groups: h5py's groups; the file itself is `""`.
      datasets: h5py's data sets.
      num_bytes: the size of the file.
    """

    groups: Mapping[str, Any]
    datasets: Mapping[str, Any]
    num_bytes: int

    @classmethod
    def of(cls, file: Any, num_bytes: int) -> Tree:
        """Walk through an open file; each object is met once, so links in a circle are harmless."""
        import h5py

        groups: dict[str, Any] = {"": file}
        datasets: dict[str, Any] = {}

        def visit(name: str | bytes, item: Any) -> None:
            if isinstance(name, bytes):  # what h5py cannot decode
                raise ValueError(f"the name {name[:40]!r} is no UTF-8")
            if isinstance(item, h5py.Dataset):
                datasets[name] = item
            elif isinstance(item, h5py.Group):
                groups[name] = item

        guarded(lambda: file.visititems(visit), "its groups")
        return cls(groups, datasets, num_bytes)

    def names(self, group: str, attribute: str) -> list[str] | None:
        """Return an attribute that lists names, as Keras splits long lists, or None without it."""

        def read() -> list[str] | None:
            attributes = self.groups[group].attrs
            if attribute in attributes:
                parts = [_strings(attributes, attribute)]
            else:
                pattern = re.compile(rf"{re.escape(attribute)}(\d{{1,4}})")
                numbers = sorted(int(m[1]) for m in map(pattern.fullmatch, attributes) if m)
                parts = [_strings(attributes, f"{attribute}{number}") for number in numbers]
                if not parts:
                    return None
            return [name for part in parts for name in part]

        return guarded(read, f"the attribute {attribute!r} of {group or 'the file'!r}")

    def text(self, group: str, attribute: str) -> str | None:
        """Return an attribute that is a string, or None without it."""

        def read() -> str | None:
            attributes = self.groups[group].attrs if group in self.groups else {}
            texts = _strings(attributes, attribute) if attribute in attributes else []
            return texts[0] if texts else None

        return guarded(read, f"the attribute {attribute!r} of {group!r}")

    def array(self, name: str) -> np.ndarray:
        """Return a data set of numbers."""
        if name not in self.datasets:
            raise Refusal(
                f"got no data set {name!r}, expected it, as the file lists it. It is cut off or "
                "damaged: download it again."
            )
        return guarded(lambda: self._checked(name), f"the data set {name!r}")

    def _checked(self, name: str) -> np.ndarray:
        dataset = self.datasets[name]
        if dataset.external or dataset.is_virtual:
            raise Refusal(
                f"got a data set {name!r} whose values lie in another file, expected them in this "
                "one. Other files are never opened. Save the weights again with Keras."
            )
        # A data set may be declared of any size and hold nothing, or be compressed a thousandfold.
        if dataset.size is None or dataset.size * dataset.dtype.itemsize > self.num_bytes:
            raise Refusal(
                f"got a data set {name!r} of shape {dataset.shape}, expected one no larger than "
                f"the file of {self.num_bytes} bytes. It is damaged or compressed: save the "
                "weights again with Keras."
            )
        is_bfloat16 = dataset.dtype == np.dtype("V2")  # HDF5 has no such type
        if not is_bfloat16 and dataset.dtype.kind not in "fiub":
            raise Refusal(
                f"got a data set {name!r} of type {dataset.dtype}, expected numbers. Keras saves "
                "nothing else as weights. Save them again with Keras."
            )
        values = np.asarray(dataset[()])
        if is_bfloat16:
            return values.view(jnp.bfloat16)
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _strings(attributes: Any, name: str) -> list[str]:
    """Return an attribute that is text or a list of texts, which old files hold as bytes."""
    import h5py

    attribute = attributes.get_id(name)
    if 0 in attribute.shape:
        return []  # Keras writes no names as no numbers
    # The HDF5 library crashes on some types that only damage makes; texts of either kind are safe.
    if not isinstance(attribute.get_type(), h5py.h5t.TypeStringID):
        raise Refusal(
            f"got an attribute {name!r} that is no text, expected names. It is damaged: download "
            "it again."
        )
    values = np.atleast_1d(attributes[name]).tolist()
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]

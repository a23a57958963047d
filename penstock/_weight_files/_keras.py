"""Keras files: `.h5` of Keras 1 to 3, `.weights.h5` and `.keras`; names as `<layer>/<variable>`."""

from __future__ import annotations

import io
import json
import mmap
from pathlib import Path

from penstock._errors import check_installed
from penstock._weight_files import _keras_layers, _keras_legacy
from penstock._weight_files._archive import Archive
from penstock._weight_files._file import WeightFile, WeightFileError
from penstock._weight_files._hdf5 import Tree, call_h5py
from penstock._weight_files._hdf5_heaps import check_heaps
from penstock._weight_files._keras_layers import Config

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
WEIGHTS_ENTRY = "model.weights.h5"
CONFIG_ENTRY = "config.json"


def read(path: Path) -> WeightFile:
    """Read an HDF5 file: `.h5` or `.weights.h5`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        check_heaps(content)
    return _read(path, path, path.stat().st_size, {})


def read_archive(path: Path) -> WeightFile:
    """Read a `.keras` file: a zip archive of the weights and the model's configuration."""
    with Archive(path) as archive:
        content = archive.read(WEIGHTS_ENTRY)
        check_heaps(content)
        config = _read_config(archive.read(CONFIG_ENTRY)) if CONFIG_ENTRY in archive.names else {}
    return _read(path, io.BytesIO(content), len(content), config)


def _read(path: Path, source: Path | io.BytesIO, num_bytes: int, config: Config) -> WeightFile:
    check_installed("h5py", "keras", f"weights file {str(path)!r}")
    import h5py

    with call_h5py(lambda: h5py.File(source, "r"), "its head") as file:
        tree = Tree.walk(file, num_bytes)
        if root := _keras_legacy.find_root(tree):
            arrays, notes = _keras_legacy.read(tree, root)
        elif _keras_layers.has_layout(tree):
            arrays, notes = _keras_layers.read(tree, config)
        else:
            found = ", ".join(sorted({name.split("/")[0] for name in tree.groups if name})[:5])
            raise WeightFileError(
                f"got an HDF5 file with {found or 'no groups'}, expected Keras weights: the "
                "attribute layer_names, or groups named vars. Save it with model.save_weights(...)."
            )
    return WeightFile(path=path, format="keras", arrays=arrays, notes=notes)


def _read_config(text: bytes) -> Config:
    """Return the configuration of the model, empty where it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightFileError(
            f"got a damaged {CONFIG_ENTRY} ({error}), expected JSON. Download it again."
        ) from error
    return value if isinstance(value, dict) else {}

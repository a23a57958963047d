"""TensorFlow checkpoints as TF-Slim wrote them: one file (V1), or several with a prefix (V2)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from penstock._errors import check_installed
from penstock._weight_files._file import Content, WeightFileError

INDEX_SUFFIX = ".index"
PART = re.compile(r"\.data-\d{5}-of-\d{5}$")
# The last bytes of V1 files and of V2 indices.
TABLE_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")


def read(path: Path) -> Content:
    """Read a checkpoint with TensorFlow, which must be installed.

    Slot variables and counters (Momentum, ExponentialMovingAverage, global_step) are among the
    arrays. The path is the prefix, the file ending in `.index`, or the one file of a V1 checkpoint.
    """
    check_installed("tensorflow", "tensorflow", f"weights file {str(path)!r}")
    import tensorflow as tf

    prefix = path.with_suffix("") if path.suffix == INDEX_SUFFIX else path
    # TensorFlow raises tf.errors, and for a damaged index also errors of Python.
    failures = (tf.errors.OpError, ValueError, RuntimeError, TypeError, LookupError)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        values = {name: np.asarray(reader.get_tensor(name)) for name in sorted(shapes)}
    except failures as error:
        raise WeightFileError(
            f"got a damaged or incomplete checkpoint ({error}), expected one that TensorFlow "
            f"reads. Put all files {prefix.name}.index and {prefix.name}.data-... into one folder, "
            "or download it again."
        ) from error
    # The object graph of a TF 2 checkpoint is a string.
    arrays = {name: value for name, value in values.items() if value.dtype.kind not in "OSU"}
    left = [name for name in values if name not in arrays]
    notes = (f"left out {', '.join(left)}, which hold strings",) if left else ()
    return arrays, notes

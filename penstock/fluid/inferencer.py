"""`Inferencer` with the arguments of Fluid's last release."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from penstock import inferencer
from penstock._mesh import Place
from penstock._program.inputs import Feed
from penstock.fluid._fetched import FetchedArray, as_fetched
from penstock.fluid.core import choose_devices

__all__ = ["Inferencer"]


class Inferencer(inferencer.Inferencer):
    """Run an infer function with saved parameters; `penstock.Inferencer` with Fluid's arguments.

    Arguments:
      infer_func: a function without arguments that calls `fluid.layers.*` and returns the
        prediction, or several values.
      param_path: the folder that `trainer.save_params` wrote.
      place: `fluid.CPUPlace()`, `fluid.CUDAPlace(0)`, or what `penstock.Inferencer` takes. By
        default, the first device of the default backend.
      parallel: use every device of that kind, as several processes always do.
      ignore_extra: accept a file with more parameters than the function uses.

    Raises:
      FileNotFoundError: there are no parameters at `param_path`.
      ParameterError: the parameters do not fit; lists every missing, extra or mismatched entry.

    >>> import tempfile
    >>> def infer_program():
    ...     return fluid.layers.fc(fluid.layers.data(name="x", shape=[2]), size=3, act="softmax")
    >>> def train_program():
    ...     return fluid.layers.mean(infer_program())
    >>> folder = tempfile.mkdtemp()
    >>> fluid.Trainer(train_program, fluid.optimizer.SGD).save_params(folder)
    >>> [prediction] = Inferencer(infer_program, folder).infer({"x": [[1.0, 2.0], [3.0, 4.0]]})
    >>> prediction.shape
    (2, 3)
    """

    __slots__ = ()

    def __init__(
        self,
        infer_func: Callable[[], object],
        param_path: str | os.PathLike[str],
        place: Place = None,
        parallel: bool = False,
        *,
        ignore_extra: bool = False,
    ) -> None:
        place = choose_devices("fluid.Inferencer", place, parallel)
        super().__init__(infer_func, param_path, place=place, ignore_extra=ignore_extra)

    def infer(  # pyright: ignore[reportIncompatibleMethodOverride]: the name is Fluid's
        self, inputs: Feed, return_numpy: bool = True
    ) -> Any:
        """Run the infer function, and return its outputs as a list of arrays.

        Arguments:
          inputs: input name to array with a leading batch axis of any length, or to sequences.
          return_numpy: `False` returns `jax.Array`s. A sequence is always a numpy array of the
            words of all examples, `[sum of lengths, ...]`; its `recursive_sequence_lengths()`
            returns the length of each.

        Raises:
          FeedError: a name, shape or dtype does not match what the function declares.
        """
        values = as_fetched(super().infer(inputs))
        return values if return_numpy else jax.tree.map(_to_device, values)


def _to_device(value: FetchedArray) -> FetchedArray | jax.Array:
    # A device's array knows no lengths.
    return value if value.recursive_sequence_lengths() else jax.numpy.asarray(value)

"""`Inferencer`: inference with a program function and saved parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from jax.typing import ArrayLike

from penstock import _parameters
from penstock._errors import FixedAttributes
from penstock._mesh import Place
from penstock._parameter_names import Nested, nest_variables
from penstock._parameters import read_parameters
from penstock._program.inputs import Feed
from penstock._reader_items import FeedOrder, ReaderLike
from penstock.program_builder import ProgramBuilder
from penstock.trainer.prediction import Prediction


class Inferencer(FixedAttributes):
    """Run a network with the parameters that a `Trainer` saved.

    Arguments:
      infer_func: a function without arguments that calls `layers.*` and returns an array, or a
        tuple, list or dict of arrays.
      param_path: a folder written by `Trainer.save_params`, a checkpoint, a folder of them (the
        newest), the folder of a run, or a model file, of which the weights are read.
      place: the devices to run on, as for `Trainer`.
      ignore_extra: accept parameters that the function does not use, such as those of a whole GAN
        for its generator.
      strict: refuse a feed with columns that the function does not declare.

    Raises:
      FileNotFoundError: there are no parameters at `param_path`.
      ParameterError: entries are missing, extra or mismatched; lists all of them.

    >>> import tempfile, optax
    >>> from penstock import Trainer, layers
    >>> def infer_program():
    ...     return layers.fc(layers.data("x", shape=[2]), size=3, act="softmax")
    >>> def train_program():
    ...     label = layers.data("label", shape=[1], dtype="int32")
    ...     return layers.mean(layers.cross_entropy(infer_program(), label))
    >>> trainer = Trainer(train_program, optax.sgd(0.1))
    >>> folder = tempfile.mkdtemp()
    >>> trainer.save_params(folder)
    >>> inferencer = Inferencer(infer_program, folder)
    >>> inferencer.infer({"x": [[1.0, 2.0], [3.0, 4.0]]}).shape
    (2, 3)
    >>> batches = [{"x": [[1.0, 2.0]], "id": ["a"]}, {"x": [[3.0, 4.0]], "id": ["b"]}]
    >>> inferencer.predict_all(batches, keep=["id"])["id"].tolist()
    ['a', 'b']
    """

    __slots__ = ("builder",)

    def __init__(
        self,
        infer_func: Callable[[], object],
        param_path: str | os.PathLike[str],
        *,
        place: Place = None,
        ignore_extra: bool = False,
        strict: bool = False,
    ) -> None:
        self.builder = ProgramBuilder(infer_func=infer_func, place=place, strict=strict)
        table = self.builder.programs.network.table
        entries = read_parameters(param_path)
        hint = "Is it the infer function of the network that was trained?"
        if not ignore_extra:
            hint += " Pass ignore_extra=True if it is meant to use only a part of the parameters."
        _parameters.check(param_path, entries, table, may_have_extra=ignore_extra, hint=hint)
        # What was not refused above may still have entries that the function does not use.
        fitting = _parameters.select_fitting(entries, table)
        self._variables = self.builder.programs.states.copy(nest_variables(fitting))

    def infer(self, feed: Feed) -> Any:
        """Return what the infer function returns, as NumPy arrays in its structure.

        Arguments:
          feed: a dict from input name to array `[B, ...]`, with any B. If each output row depends
            on its own example alone, B is padded to a power of two and one program is compiled for
            each; otherwise one is compiled for each B.

        Raises:
          FeedError: a name, shape or dtype does not fit the inputs of the function.
        """
        return self.builder.infer(self._variables, feed)

    def predict(
        self, reader: ReaderLike, keep: Sequence[str] = (), feed_order: FeedOrder | None = None
    ) -> Generator[Any, None, None]:
        """Yield what the infer function returns for each batch of `reader`.

        It is the same as `Trainer.predict`.

        Arguments:
          reader: yields batches; columns that the function does not declare may be there.
          keep: columns of the reader to have beside the outputs, such as `["id", "label"]`.
          feed_order: the names of a tuple's fields.

        Yields:
          The outputs of a batch; with `keep`, a dict of columns.
        """
        return self._make_prediction("inferencer.predict", reader, keep, feed_order).iterate()

    def predict_all(
        self, reader: ReaderLike, keep: Sequence[str] = (), feed_order: FeedOrder | None = None
    ) -> Any:
        """Return what `predict` yields, joined over all batches in the order of the reader.

        It is the same as `Trainer.predict_all`.

        Arguments:
          reader: as for `predict`, and the other arguments.

        Returns:
          Arrays `[N, ...]` in the function's structure; with `keep`, a dict of columns.
        """
        return self._make_prediction("inferencer.predict_all", reader, keep, feed_order).join()

    def _make_prediction(
        self, owner: str, reader: ReaderLike, keep: Sequence[str], feed_order: FeedOrder | None
    ) -> Prediction:
        return Prediction(
            programs=self.builder.programs,
            variables=self._variables,
            reader=reader,
            feed_order=feed_order,
            keep=keep,
            owner=owner,
        )

    def __repr__(self) -> str:
        return f"<Inferencer: {self.builder!r}>"

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; can be read and set."""
        return _parameters.Parameters(lambda: self._variables, self._adopt)

    def _adopt(self, variables: Mapping[str, Nested[ArrayLike]]) -> None:
        self._variables = self.builder.programs.states.copy(variables)

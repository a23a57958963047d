"""scikit-learn's estimators over a program function: `Classifier` and `Regressor`.

They are used in pipelines, `cross_val_score` and `GridSearchCV` as scikit-learn's own are. What
they do, a `Trainer` does too: it is their attribute `trainer_` after `fit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
import optax
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from penstock import layers, readers
from penstock.trainer import Trainer

__all__ = ["Classifier", "Regressor"]

_PREDICTED = 1024
"""Rows that are predicted at a time. Always as many: rows then do not depend on those beside them,
to the last bit."""


_validate: Any = validate_data  # whose result depends on its arguments


class _Estimator(BaseEstimator):
    n_features_in_: int
    trainer_: Trainer

    def __init__(
        self,
        program_func: Callable[..., jax.Array] | None = None,
        *,
        optimizer: Callable[[Any], optax.GradientTransformation] = optax.adam,
        learning_rate: optax.ScalarOrSchedule = 0.01,
        num_epochs: int = 50,
        batch_size: int = 32,
        seed: int = 0,
        place: str | None = None,
    ) -> None:
        # As scikit-learn wants it: kept as they are, and looked at by `fit`.
        self.program_func, self.optimizer = program_func, optimizer
        self.learning_rate = learning_rate
        self.num_epochs, self.batch_size = num_epochs, batch_size
        self.seed, self.place = seed, place

    def _make_program(self) -> Callable[[], jax.Array]:
        """Return the program function without arguments."""
        raise NotImplementedError

    @staticmethod
    def _compute_loss(prediction: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _make_trainer(self) -> Trainer:
        # Neither program may hold the estimator, and with it the trainer: its memory would wait
        # for Python's collector.
        infer_program, compute_loss = self._make_program(), self._compute_loss

        def train_program() -> jax.Array:
            return compute_loss(infer_program())

        return Trainer(
            train_program,
            self.optimizer(self.learning_rate),
            infer_func=infer_program,
            place=self.place,
            seed=self.seed,
        )

    def _train(self, x: np.ndarray, y: np.ndarray) -> Self:
        # Searches over arrays set NumPy's integers, which readers refuse: JSON has none.
        batch_size, seed = (
            n.item() if isinstance(n, np.integer) else n for n in (self.batch_size, self.seed)
        )
        size = min(batch_size, len(x))
        reader = readers.arrays({"x": x, "y": y}, size, shuffle=True, seed=seed)
        self.trainer_ = self._make_trainer()
        self.trainer_.train(reader, num_epochs=self.num_epochs)
        return self

    def _infer(self, x: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        rows = _validate(self, x, dtype=np.float32, reset=False)
        padded = np.pad(rows, ((0, -len(rows) % _PREDICTED), (0, 0)))
        reader = readers.arrays({"x": padded}, _PREDICTED)
        return self.trainer_.predict_all(reader)[: len(rows)]

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the parameters for the programs, which are compiled."""
        state: Any = super().__getstate__()
        state = {**state}
        if "trainer_" in state:
            state["trainer_"] = dict(self.trainer_.parameters)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled, and make the programs."""
        super().__setstate__(state)
        if "trainer_" in state:
            self.trainer_ = self._make_trainer()
            self.trainer_.parameters.update(state["trainer_"])


class Classifier(ClassifierMixin, _Estimator):
    """Classify rows of numbers by a program function, as scikit-learn's classifiers do.

    Arguments:
      program_func: a function of the numbers of features and classes. It declares the input `"x"`
        and returns probabilities `[B, num_classes]`. By default a hidden layer of 64.
      optimizer: a function of the learning rate, such as `optax.adamw`.
      learning_rate: a number, or a schedule.
      num_epochs: how often to train on all rows.
      batch_size: rows of a step.
      seed: of initial values and shuffling: two fits give the same bits.
      place: where to run, such as `"cpu"`: the name of a platform, which scikit-learn can copy.

    Attributes:
      classes_: the labels, sorted.
      trainer_: the `Trainer`, after `fit`.

    >>> import numpy as np
    >>> from penstock import layers
    >>> from penstock.sklearn import Classifier
    >>> def program(num_features, num_classes):
    ...     x = layers.data("x", shape=[num_features])
    ...     return layers.fc(layers.fc(x, size=8, act="relu"), size=num_classes, act="softmax")
    >>> x = np.random.default_rng(0).normal(size=(64, 2))
    >>> label = np.where(x.sum(axis=1) > 0, "above", "below")
    >>> classifier = Classifier(program, learning_rate=0.05).fit(x, label)
    >>> classifier.predict([[1.0, 1.0], [-1.0, -1.0]]).tolist()
    ['above', 'below']
    >>> classifier.predict_proba(x).shape, bool(classifier.score(x, label) > 0.95)
    ((64, 2), True)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from initial values.

        Arguments:
          X: numbers `[N, num_features]`.
          y: labels `[N]` of any kind.

        Raises:
          ValueError: as scikit-learn's estimators: `X` and `y` have no rows, gaps or other lengths.
        """
        x, label = _validate(self, X, y, dtype=np.float32)
        check_classification_targets(label)
        self.classes_, ids = np.unique(label, return_inverse=True)
        return self._train(x, ids.astype(np.int32))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable label of each row, `[N]`."""
        numbers = self.predict_proba(X).argmax(axis=1)
        return self.classes_[numbers]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities `[N, num_classes]`, in the order of `classes_`."""
        return self._infer(X)

    def _make_program(self) -> Callable[[], jax.Array]:
        function = self.program_func or _classify
        return functools.partial(function, self.n_features_in_, len(self.classes_))

    @staticmethod
    def _compute_loss(prediction: jax.Array) -> jax.Array:
        label = layers.data("y", shape=[1], dtype="int32")
        return layers.mean(layers.cross_entropy(prediction, label))


class Regressor(RegressorMixin, _Estimator):
    """Predict a number from rows of numbers by a program function, as scikit-learn's regressors do.

    Targets far from 0 and 1 are learned faster after scaling, by scikit-learn's
    `TransformedTargetRegressor`.

    Arguments:
      program_func: a function of the number of features. It declares the input `"x"` and returns
        predictions `[B, 1]`. By default a hidden layer of 64.
      optimizer: as for `Classifier`, and the other arguments.

    Attributes:
      trainer_: the `Trainer`, after `fit`.

    >>> import numpy as np
    >>> from penstock.sklearn import Regressor
    >>> x = np.random.default_rng(0).normal(size=(64, 2))
    >>> regressor = Regressor(num_epochs=100).fit(x, x.sum(axis=1))
    >>> regressor.predict(x).shape, bool(regressor.score(x, x.sum(axis=1)) > 0.95)
    ((64,), True)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from initial values on numbers `X` `[N, num_features]` and targets `y` `[N]`.

        Raises:
          ValueError: as scikit-learn's estimators: `X` and `y` have no rows, gaps or other lengths.
        """
        x, target = _validate(self, X, y, dtype=np.float32, y_numeric=True)
        return self._train(x, target.astype(np.float32))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the prediction of each row, `[N]`."""
        return self._infer(X)[:, 0]

    def _make_program(self) -> Callable[[], jax.Array]:
        return functools.partial(self.program_func or _regress, self.n_features_in_)

    @staticmethod
    def _compute_loss(prediction: jax.Array) -> jax.Array:
        target = layers.data("y", shape=[1])
        return layers.mean(layers.square_error_cost(prediction, target))


def _classify(num_features: int, num_classes: int) -> jax.Array:
    hidden = layers.fc(layers.data("x", shape=[num_features]), size=64, act="relu")
    return layers.fc(hidden, size=num_classes, act="softmax")


def _regress(num_features: int) -> jax.Array:
    hidden = layers.fc(layers.data("x", shape=[num_features]), size=64, act="relu")
    return layers.fc(hidden, size=1)

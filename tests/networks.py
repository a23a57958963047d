"""Small networks, their data, and observers that the tests of the core share."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from penstock import layers, readers

NUM_FEATURES = 4
NUM_CLASSES = 3


def one_device() -> list[jax.Device]:
    """Return the place with one device."""
    return jax.devices()[:1]


def eight_devices() -> list[jax.Device]:
    """Return the place with all virtual devices."""
    return jax.devices()[:8]


# What holds on eight devices, `make test-all` tries on one too.
PLACES = pytest.mark.parametrize(
    "place",
    [
        pytest.param(one_device, id="one", marks=pytest.mark.slow),
        pytest.param(eight_devices, id="eight"),
    ],
)
STEPS_PER_CALL = pytest.mark.parametrize(
    "steps_per_call", [pytest.param(1, marks=pytest.mark.slow), 4]
)
PLACES_AND_CALLS = pytest.mark.parametrize(
    ("place", "steps_per_call"),
    [
        pytest.param(one_device, 1, id="one", marks=pytest.mark.slow),
        pytest.param(eight_devices, 4, id="eight, four steps a call"),
    ],
)


def linear_program() -> Any:
    """Return the loss of a regression."""
    prediction = layers.fc(layers.data("x", shape=[NUM_FEATURES]), size=1)
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


def linear_data(num_examples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return `x` [N, 4] and `y` [N, 1], a sum with some noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_examples, NUM_FEATURES)).astype(np.float32)
    noise = 0.1 * random.normal(size=(num_examples, 1)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1, keepdims=True) + noise}


def linear_reader(num_examples: int = 10, batch_size: int = 4) -> Any:
    """Return a reader of the regression's data: by default batches of 4, 4 and 2."""
    return readers.arrays(linear_data(num_examples), batch_size)


def classifier() -> jax.Array:
    """Return class probabilities [B, 3]."""
    hidden = layers.fc(layers.data("x", shape=[NUM_FEATURES]), size=8, act="relu")
    return layers.fc(hidden, size=NUM_CLASSES, act="softmax")


def classifier_program() -> Any:
    """Return loss, accuracy and, by example, the probabilities of a classifier."""
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = classifier()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label), prediction


def rich_program() -> Any:
    """Return loss, accuracy and probabilities of a network with statistics and dropout."""
    label = layers.data("label", shape=[1], dtype="int32")
    # No bias: its gradient under batch norm is rounding, of which Adam makes steps.
    hidden = layers.fc(layers.data("x", shape=[NUM_FEATURES]), size=8, bias_attr=False)
    hidden = layers.batch_norm(hidden, act="relu")
    hidden = layers.dropout(hidden, dropout_prob=0.25)
    prediction = layers.fc(hidden, size=NUM_CLASSES, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label), prediction


def class_data(num_examples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return `x` [N, 4] and `label` [N, 1], the largest of the first three features."""
    x = linear_data(num_examples, seed)["x"]
    return {"x": x, "label": x[:, :NUM_CLASSES].argmax(axis=1).astype(np.int32)[:, None]}


class Recorder:
    """An event handler that keeps the events, and acts at one of them.

    Arguments:
      act: called with the first event of which `describe` gives `at`.
    """

    def __init__(self, at: str = "", act: Callable[[Any], Any] = lambda event: None) -> None:
        self.events: list[Any] = []
        self._at, self._act = at, act

    def __call__(self, event: Any) -> None:
        """Keep an event."""
        self.events.append(event)
        if describe(event) == self._at:
            self._at = ""
            self._act(event)

    @property
    def lines(self) -> list[str]:
        """The events so far, one line each."""
        return [describe(event) for event in self.events]

    def of(self, kind: type) -> list[Any]:
        """Return the events of one class."""
        return [event for event in self.events if isinstance(event, kind)]


def describe(event: Any) -> str:
    """Return an event's class and numbers: epoch, step, global step; or the reason."""
    fields = [getattr(event, name, None) for name in ("reason", "epoch", "step")]
    return " ".join([type(event).__name__, *(str(field) for field in fields if field is not None)])


def host(tree: Any) -> Any:
    """Return a pytree with a copy of its arrays on the host."""
    return jax.tree.map(lambda x: np.array(jax.device_get(x)), tree)


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Raise unless two pytrees have the same structure and, bit for bit, the same arrays."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    named = jax.tree_util.tree_leaves_with_path(host(actual))
    for (path, left), right in zip(named, jax.tree.leaves(host(expected)), strict=True):
        assert left.dtype == right.dtype, jax.tree_util.keystr(path)
        assert left.tobytes() == right.tobytes(), jax.tree_util.keystr(path)


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Raise unless two pytrees agree, each array within `rtol` of its largest element."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    named = jax.tree_util.tree_leaves_with_path(host(actual))
    for (path, left), right in zip(named, jax.tree.leaves(host(expected)), strict=True):
        scale = np.abs(right).max() if right.size else 0
        np.testing.assert_allclose(
            left, right, rtol=rtol, atol=rtol * scale, err_msg=jax.tree_util.keystr(path)
        )


@contextlib.contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """Collect an entry for every compilation by XLA in this process, as JAX itself reports them."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def compile_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what penstock has warned of since the test began, but for a wait for data."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "penstock"
        and record.levelno >= logging.WARNING
        and not record.getMessage().startswith("training waited for data ")
    ]

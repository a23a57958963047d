"""`Gradients`: how large gradients and updates are, for the logs beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock._errors import check_count
from penstock._parameter_updates import ParameterUpdate
from penstock.events import BeginTraining, Event
from penstock.handlers._readings import Readings


class Gradients:
    """Measure the gradient and the update of each parameter every `every_steps` steps.

    What it finds is in `latest`, and the logs in the same list have it without being told:

    - `TensorBoard`: norms over all parameters, the gradient's norm and the relative update of each
      parameter, and histograms of both.
    - `WandB` and `MLflow`: the norms over all parameters, as `updates/gradient_norm`,
      `updates/update_norm` and `updates/parameter_norm`.
    - `CSVLog`, `JSONLog` and `Log`: the same three in the row or line of the step.

    A gradient is that of the mean loss over the global batch, regularizers in it, before the
    optimizer clips or scales it; an update is what is added to the parameter, learning rate in it.
    A relative update of about a thousandth is usual; far above it training is unsteady, far below
    nothing is learned, and 0 is a parameter that gets no gradient.

    Without this handler nothing is computed. With it a measured step is computed twice, by a second
    program that is compiled once; training's own program and its numbers stay the same bit for bit.
    Speeds in the logs are without it: `EndStep.measure_secs` tells it, and the page of `Report` has
    a part for it. On two CPU cores a measured step of LeNet took 8 times as long as another, one of
    ResNet-32 2.3 times; of every 100 steps one costs 7 % and 4 % (`python -m benchmarks
    gradients`). Of several processes all measure where one has this handler.

    Arguments:
      every_steps: how many steps lie between two that are measured. Two of these handlers measure
        at the greatest common divisor of theirs.

    Attributes:
      latest: a `ParameterUpdate` by the parameter's name, of the last step that was measured and
        read, which is one launch late.

    Raises:
      ValueError: `every_steps` is not a positive integer.

    >>> import numpy as np, optax
    >>> import penstock as ps
    >>> from penstock import handlers, layers, readers
    >>> def program():
    ...     prediction = layers.fc(layers.data("x", shape=[2]), size=1)
    ...     return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    >>> x = np.ones((40, 2), np.float32)
    >>> reader = readers.arrays({"x": x, "y": x.sum(axis=1, keepdims=True)}, batch_size=10)
    >>> gradients = handlers.Gradients(every_steps=2)
    >>> ps.Trainer(program, optax.sgd(0.01)).train(reader, [gradients])
    >>> update = gradients.latest["fc_0/w"]
    >>> abs(update.update_norm / update.gradient_norm - 0.01) < 1e-6
    True
    """

    def __init__(self, every_steps: int = 100) -> None:
        check_count("every_steps", every_steps, 1)
        self._every_steps = int(every_steps)
        self._readings = Readings(self._every_steps)
        self.latest: Mapping[str, ParameterUpdate] = {}

    def __call__(self, event: Event) -> None:
        """Ask for updates when training begins, and keep the last that was read."""
        if isinstance(event, BeginTraining):
            event.updates_every = math.gcd(event.updates_every, self._every_steps)
        reading = self._readings(event)
        if reading is not None and reading.updates:
            self.latest = reading.updates

"""`Gradients`: the sizes of gradients and updates, for the other handlers in the list."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock._errors import check_int
from penstock._parameter_updates import ParameterUpdate
from penstock.events import BeginTraining, Event
from penstock.handlers._readings import Readings


class Gradients:
    """Measure the gradient and the update of each parameter every `every_steps` steps.

    The results are in `latest`. Other handlers in the same list log them too:

    - `TensorBoard`: norms over all parameters; for each parameter the gradient norm, the relative
      update, and histograms of gradient and update.
    - `WandB` and `MLflow`: the norms over all parameters, as `updates/gradient_norm`,
      `updates/update_norm` and `updates/parameter_norm`.
    - `CSVLog`, `JSONLog` and `Log`: the same three norms, in the row or line of the step.

    The gradient is that of the mean loss over the global batch, with regularizers, before the
    optimizer clips or scales it. The update is what the optimizer adds to the parameter, with the
    learning rate. A relative update of about 0.001 is usual. If it is far larger, training is
    unstable; if far smaller, little is learned; 0 means that the parameter gets no gradient.

    A measured step runs twice, the second time in a separate program that is compiled once; the
    results of training stay bit for bit the same. Speeds in logs exclude the time for it, which is
    `EndStep.measure_secs`. On two CPU cores, measuring every 100th step costs 7 % for LeNet and 4 %
    for ResNet-32 (`python -m benchmarks gradients`). If one process has this handler, all measure.

    Arguments:
      every_steps: the interval in steps. Two `Gradients` measure at the greatest common divisor of
        their intervals.

    Attributes:
      latest: a `ParameterUpdate` by parameter name, of the last measured step; read one launch
        late.

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
        check_int("every_steps", every_steps, 1)
        self._every_steps = int(every_steps)
        self._readings = Readings(self._every_steps)
        self.latest: Mapping[str, ParameterUpdate] = {}

    def __call__(self, event: Event) -> None:
        """Request updates when training begins, and keep the last ones read."""
        if isinstance(event, BeginTraining):
            event.updates_every = math.gcd(event.updates_every, self._every_steps)
        for reading in self._readings(event):
            self.latest = reading.updates or self.latest

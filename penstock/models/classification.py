"""The programs that train and run a classifier of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from penstock import layers
from penstock._errors import check_number
from penstock._program.frame import widen
from penstock.models._registry import Model, Outputs, Settings, get
from penstock.models.explanation import grad_cam

# Of the auxiliary head's loss, in all of TF-Slim's networks that have one.
AUXILIARY_WEIGHT = 0.4


class Classifier(NamedTuple):
    """The program functions of one network, which share their parameters.

    Arguments:
      infer_program: returns the class probabilities, `[B, num_classes]`.
      train_program: returns a dict of `loss`, `accuracy` and, for more than 5 classes, `top_5`.
      model: the network, with its settings.
      explain_program: an infer program that also returns a heat map: a dict of `probabilities`
        `[B, num_classes]` and `heat` `[B, h, w]`, see `models.grad_cam`.
    """

    infer_program: Callable[[], jax.Array]
    train_program: Callable[[], dict[str, jax.Array]]
    model: Model
    explain_program: Callable[[], dict[str, jax.Array]]


def classifier(
    model: str | Model,
    num_classes: int,
    *,
    image_size: int | None = None,
    label_smoothing: float = 0.0,
    auxiliary_weight: float = AUXILIARY_WEIGHT,
    settings: Settings | None = None,
    preprocess: Callable[[jax.Array], jax.Array] | None = None,
    accuracy: Callable[[jax.Array, jax.Array], jax.Array] = layers.accuracy,
) -> Classifier:
    """Make the infer and train program functions of a network.

    They declare the inputs `image` `[H, W, C]` float32 (uint8 is cast on the device) and `label`
    `[1]` int32. The loss is the mean softmax cross entropy, plus `auxiliary_weight` times that of
    the auxiliary head, if any, plus weight decay: `coefficient / 2` times the sum of squares of the
    weights that the published code decays. Source: FastNN.

    Arguments:
      model: the name of a network, or a `models.Model`.
      image_size: height and width in pixels, the network's own by default.
      label_smoothing: the share of the label's probability that is spread over all classes.
      settings: settings to change in the network, see `models.Settings`.
      preprocess: applied to the images `[B, H, W, C]` first, e.g. `preprocessing.get(name).device`.
      accuracy: a function of logits `[B, num_classes]` and labels `[B, 1]`.

    Raises:
      UnknownNameError: there is no such network.
      ValueError: `label_smoothing` is not from 0 to less than 1.

    >>> import optax
    >>> import penstock as ps
    >>> from penstock import models
    >>> lenet = models.classifier("lenet", num_classes=10)
    >>> builder = ps.ProgramBuilder(lenet.train_program, optax.sgd(0.1))
    >>> sorted(builder.init().variables["params"])
    ['conv1', 'conv2', 'fc3', 'fc4']
    """
    why = "It is the share of the label's probability that all classes get."
    check_number("models.classifier got label_smoothing=", label_smoothing, "[0, 1)", why)
    chosen = (get(model) if isinstance(model, str) else model).with_settings(settings or Settings())
    size = chosen.default_image_size if image_size is None else image_size

    def read_images() -> jax.Array:
        images = layers.data("image", shape=[size, size, chosen.num_channels])
        return images if preprocess is None else preprocess(images)

    def network() -> Outputs:
        return chosen(read_images(), num_classes)

    def train_program() -> dict[str, jax.Array]:
        logits, end_points = network()
        label = layers.data("label", shape=[1], dtype="int32")
        loss = layers.mean(_cross_entropy(logits, label, label_smoothing))
        if auxiliary_weight and "AuxLogits" in end_points:
            auxiliary = _cross_entropy(end_points["AuxLogits"], label, label_smoothing)
            loss = loss + auxiliary_weight * layers.mean(auxiliary)
        # FastNN makes these terms too, but never adds them to the loss.
        if coefficient := chosen.settings.weight_decay:
            loss = loss + layers.weight_decay_loss(coefficient, chosen.decays)
        top_5 = {"top_5": layers.accuracy(logits, label, k=5)} if logits.shape[-1] > 5 else {}
        return {"loss": loss, "accuracy": accuracy(logits, label), **top_5}

    def infer_program() -> jax.Array:
        return layers.softmax(network()[0])

    def explain_program() -> dict[str, jax.Array]:
        logits, heat = grad_cam(chosen, read_images(), num_classes)
        return {"probabilities": layers.softmax(logits), "heat": heat}

    return Classifier(infer_program, train_program, chosen, explain_program)


def _cross_entropy(logits: jax.Array, label: jax.Array, label_smoothing: float) -> jax.Array:
    logits = widen(logits)
    if not label_smoothing:
        return layers.softmax_with_cross_entropy(logits, label)
    num_classes = logits.shape[-1]
    targets = layers.one_hot(label, num_classes) * (1 - label_smoothing)
    # All classes share it, the label's own too, as in TensorFlow's `label_smoothing`.
    targets = targets + label_smoothing / num_classes
    return layers.softmax_with_cross_entropy(logits, targets, soft_label=True)

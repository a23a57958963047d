"""The registry of networks, by name, and the settings that do not change their parameters."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from penstock._errors import check_int, check_known, check_number

EndPoints = dict[str, jax.Array]
Outputs = tuple[jax.Array, EndPoints]
"""Logits or features, and values in the middle of the network by name."""
Network = Callable[..., Outputs]
N = TypeVar("N", bound=Network)

FAMILIES = (
    "alexnet",
    "cifarnet",
    "inception_resnet_v2",
    "inception_v1",
    "inception_v2",
    "inception_v3",
    "inception_v4",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3",
    "nasnet",
    "resnet",
    "resnet_cifar10",
    "resnet_v1_5",
    "vgg",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a network is regularised and normalised; None stands for the network's own value.

    A network's own values, `models.get(name).settings`, are those of the published code, with one
    exception: batch norm's decay is warmed up, to at most `(1 + step) / (10 + step)`. With
    TF-Slim's decay of 0.9997 the initial statistics take ten thousand steps to fade, and a short
    run would look broken at test time.

    Arguments:
      batch_norm_decay: the decay of batch norm's running statistics, from 0 to 1.
      batch_norm_warmup: False applies `batch_norm_decay` from the first step on, as the published
        code does.
      batch_norm_epsilon: added to the variance.
      batch_norm_group_size: normalise groups of this many examples by their own statistics; None
        for the whole batch.
      unbiased_running_variance: update the running variance with the unbiased variance of the
        batch, `n / (n - 1)` times the biased one, as TensorFlow's fused kernel and torch do.
      dropout: the dropout rate before the last layer.
      drop_path: the drop path rate of the last cell at the end of training (NASNet).
      drop_path_steps: the number of steps over which the drop path rate rises to `drop_path`.
      weight_decay: the coefficient of weight decay in the loss of `models.classifier`.

    Raises:
      ValueError: a value is out of range.

    >>> Settings(batch_norm_decay=0.9).over(Settings(batch_norm_decay=0.99, dropout=0.5)).dropout
    0.5
    """

    batch_norm_decay: float | None = None
    batch_norm_warmup: bool | None = None
    batch_norm_epsilon: float | None = None
    batch_norm_group_size: int | None = None
    unbiased_running_variance: bool | None = None
    dropout: float | None = None
    drop_path: float | None = None
    drop_path_steps: int | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("batch_norm_decay", "dropout")}
        bounds = {name: (value, 0.0, 1.0) for name, value in shares.items()}
        bounds["drop_path"] = (self.drop_path, 0.0, 0.999)
        bounds["batch_norm_group_size"] = (self.batch_norm_group_size, 1.0, float("inf"))
        for name in ("batch_norm_epsilon", "weight_decay", "drop_path_steps"):
            bounds[name] = (getattr(self, name), 0.0, float("inf"))
        for name, (value, least, most) in bounds.items():
            if value is not None:
                why = "None is the network's own."
                check_number(f"models.Settings got {name}=", value, f"[{least}, {most}]", why)

    def over(self, defaults: Settings) -> Settings:
        """Return these settings, with the values of `defaults` in place of None."""
        mine = dataclasses.asdict(self)
        return dataclasses.replace(
            defaults, **{name: value for name, value in mine.items() if value is not None}
        )


_NOTHING_SET = Settings()


def decays_kernels(path: str) -> bool:
    """Return whether weight decay applies to a parameter: a kernel, but not a depthwise one."""
    return path.endswith("/w")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A network of the library, as `models.get(name)` returns it.

    Call it in a program function, `model(images, num_classes)`, for its logits and end points.

    Arguments:
      name: its name in the library.
      function: `(images, num_classes) -> (logits, end_points)`, called in a program function. If
        it has a parameter `settings`, it also gets the `Settings`.
      default_image_size: the height and width in pixels that it was designed for.
      preprocessing: the name of the preprocessing that its published weights were trained with.
      num_classes: the number of classes of the published weights.
      num_channels: the number of channels of its images.
      settings: how it is regularised and normalised.
      decays: takes a parameter's path and returns whether weight decay applies to it.
      source: where the network comes from.
    """

    name: str
    function: Network
    default_image_size: int
    preprocessing: str = "inception"
    num_classes: int = 1000
    num_channels: int = 3
    settings: Settings = _NOTHING_SET
    decays: Callable[[str], bool] = decays_kernels
    source: str = ""

    def __call__(self, images: jax.Array, num_classes: int | None) -> Outputs:
        """Build the network inside a program function.

        Arguments:
          images: `[B, H, W, C]` float, preprocessed.
          num_classes: the width of the last layer; None leaves it out.

        Returns:
          Logits `[B, num_classes]`, or with None the features `[B, F]` before the last layer; and
          the end points: values in the middle of the network, by name.
        """
        if num_classes is not None:
            why = "None gives the features before the last layer."
            check_int(f"model {self.name!r} got num_classes=", num_classes, 1, why)
        # A user's network need not have any.
        if "settings" in inspect.signature(self.function).parameters:
            return self.function(images, num_classes, settings=self.settings)
        return self.function(images, num_classes)

    def with_settings(self, settings: Settings) -> Model:
        """Return a copy of the model with the settings changed that are not None in `settings`."""
        return dataclasses.replace(self, settings=settings.over(self.settings))


def slim_model(
    name: str,
    function: Network,
    image_size: int,
    settings: Settings,
    *,
    num_classes: int = 1001,
    **fields: Any,
) -> Model:
    """Return a network of TF-Slim; most of its weights have a 1001st class for the background.

    `fields` are others of `Model`.
    """
    return Model(
        name=name,
        function=function,
        default_image_size=image_size,
        num_classes=num_classes,
        settings=settings,
        source=f"TF-Slim's {name}",
        **fields,
    )


_MODELS: dict[str, Model] = {}


def register(
    name: str,
    *,
    default_image_size: int,
    preprocessing: str = "inception",
    num_classes: int = 1000,
    num_channels: int = 3,
    settings: Settings = _NOTHING_SET,
    decays: Callable[[str], bool] = decays_kernels,
    source: str = "",
) -> Callable[[N], N]:
    """Add a network to the library under `name`: decorate its function.

    The other arguments are the fields of `models.Model`. Source: FastNN's `models_map`.

    Raises:
      ValueError: the name is taken.

    >>> from penstock import layers, models
    >>> @models.register("one_layer", default_image_size=8, preprocessing="lenet", num_classes=10)
    ... def one_layer(images, num_classes):
    ...     return layers.fc(images, num_classes or 16), {}
    >>> models.get("one_layer").default_image_size
    8
    """

    def add(function: N) -> N:
        # The library's networks first: a name of theirs is refused here, not when they load.
        load_families()
        if name in _MODELS:
            raise ValueError(
                f"models.register got the name {name!r}, expected one that is not taken: it is "
                f"{_MODELS[name].source or 'a network that was registered before'}. Choose another."
            )
        _MODELS[name] = Model(
            name=name,
            function=function,
            default_image_size=default_image_size,
            preprocessing=preprocessing,
            num_classes=num_classes,
            num_channels=num_channels,
            settings=settings,
            decays=decays,
            source=source,
        )
        return function

    return add


def get(name: str, settings: Settings | None = None) -> Model:
    """Return the network called `name`.

    Arguments:
      settings: settings to change, see `models.Settings`.

    Raises:
      UnknownNameError: there is no such network.

    >>> get("lenet").default_image_size
    28
    """
    load_families()
    expected = "the name of a network; models.names() and `penstock models` list them"
    check_known("models.get", name, _MODELS, expected=expected)
    model = _MODELS[name]
    return model if settings is None else model.with_settings(settings)


def names(pattern: str = "*") -> list[str]:
    """Return the names of the networks that match a glob pattern, sorted.

    >>> names("le*")
    ['lenet']
    """
    load_families()
    return sorted(fnmatch.filter(_MODELS, pattern))


@functools.cache
def load_families() -> Mapping[str, str]:
    """Add the networks of this package, and return the module of each by name."""
    # When a name is first asked for, not when penstock.models is imported: these are two dozen
    # files, of which a run needs one.
    families: dict[str, str] = {}
    models: dict[str, Model] = {}
    for family in FAMILIES:
        for model in importlib.import_module(f"penstock.models.{family}").MODELS:
            families[model.name], models[model.name] = family, model
    # At once, and twice does no harm: Ctrl-C may end the imports, and threads may ask together.
    _MODELS.update(models)
    return families

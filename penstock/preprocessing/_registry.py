"""The registry of preprocessings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock._errors import UnknownNameError, listed, nearest
from penstock.preprocessing._base import Preprocessing

Make = TypeVar("Make", bound=Callable[[], Preprocessing])

_PREPROCESSINGS: dict[str, Callable[[], Preprocessing]] = {}


def register(name: str) -> Callable[[Make], Make]:
    """Add a preprocessing under `name`: decorate its class, or a function that returns one.

    Raises:
      ValueError: the name is taken.

    Source: FastNN's `preprocessing_fn_map`.

    >>> from penstock import preprocessing
    >>> @preprocessing.register("half")
    ... class Half(preprocessing.Preprocessing):
    ...     channels = (1, 3)
    ...
    ...     def crop(self, image, height, width, random):
    ...         return preprocessing.crop_or_pad(image, height, width)
    ...
    ...     def finish(self, image, draws):
    ...         return image / 255 - 0.5
    >>> preprocessing.get("half").for_evaluation(28).width
    28
    """

    def add(make: Make) -> Make:
        if name in _PREPROCESSINGS:
            raise ValueError(
                f"preprocessing.register got the name {name!r}, expected one that is not taken: it "
                f"is {_PREPROCESSINGS[name]!r}. Choose another name."
            )
        _PREPROCESSINGS[name] = make
        return make

    return add


def get(name: str) -> Preprocessing:
    """Return the preprocessing called `name`, with its default options.

    A network knows the name of its own: `preprocessing.get(models.get("vgg_16").preprocessing)`.

    Raises:
      UnknownNameError: there is none.

    >>> get("inception")
    Inception(dtype=None, fast_mode=True, ...)
    """
    if name not in _PREPROCESSINGS:
        raise UnknownNameError(
            f"preprocessing.get got {name!r}, expected one of {listed(names())}. Networks are not "
            "among them: models.get(name).preprocessing says which is theirs."
            + nearest(name, _PREPROCESSINGS)
        )
    return _PREPROCESSINGS[name]()


def names() -> list[str]:
    """Return the names of the preprocessings, sorted.

    >>> "vgg" in names()
    True
    """
    return sorted(_PREPROCESSINGS)

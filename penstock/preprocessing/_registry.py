"""The registry of preprocessings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypedDict, TypeVar

from penstock._errors import PreprocessingError, UnknownNameError, check_known, listed
from penstock.preprocessing._base import Preprocessing

Make = TypeVar("Make", bound=Callable[[], Preprocessing])

_PREPROCESSINGS: dict[str, Callable[[], Preprocessing]] = {}


class Description(TypedDict):
    """A preprocessing as JSON: its name, and the options that are not its defaults."""

    name: str
    options: dict[str, object]


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

    For a network's preprocessing: `preprocessing.get(models.get("vgg_16").preprocessing)`.

    Raises:
      UnknownNameError: there is no such preprocessing.

    >>> get("inception")
    Inception(dtype=None, fast_mode=True, ...)
    """
    why = "Networks are not among them: models.get(name).preprocessing says which is theirs."
    check_known("preprocessing.get", name, names(), why)
    return _PREPROCESSINGS[name]()


def names() -> list[str]:
    """Return the names of the preprocessings, sorted.

    >>> "vgg" in names()
    True
    """
    return sorted(_PREPROCESSINGS)


def describe(preprocessing: Preprocessing) -> Description:
    """Return a JSON description of a preprocessing, for `restore`.

    It is saved in parameter folders, with the weights that were trained with it.

    Raises:
      PreprocessingError: its class is not registered.

    >>> from penstock import preprocessing
    >>> describe(preprocessing.Vgg(resize_side_min=341))
    {'name': 'vgg', 'options': {'resize_side_min': 341}}
    """
    made = {name: make() for name, make in _PREPROCESSINGS.items()}
    for name, default in made.items():
        if default == preprocessing:
            return {"name": name, "options": {}}
    for name, default in made.items():
        if type(default) is type(preprocessing):
            return {"name": name, "options": _find_options(default, preprocessing)}
    raise PreprocessingError(
        f"preprocessing.describe got {preprocessing!r}, expected one of {listed(names())}, with "
        "any options. A name is how another program finds it again. Decorate its class with "
        "@preprocessing.register(name)."
    )


def restore(description: Mapping[str, object]) -> Preprocessing:
    """Return the preprocessing that `describe` described.

    Raises:
      UnknownNameError: no preprocessing of that name is registered.
      PreprocessingError: it has no such options, or `description` is not a description.

    >>> restore({"name": "vgg", "options": {"resize_side_min": 341}}).resize_side_min
    341
    """
    try:
        made = get(str(description["name"]))
        entries = description.get("options", {})
        if not isinstance(entries, Mapping):
            raise TypeError(f"options is a {type(entries).__name__}")
        # JSON has no tuples.
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in entries.items()
        }
        return dataclasses.replace(made, **options)
    except UnknownNameError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PreprocessingError(
            f"preprocessing.restore got {description!r} ({error}), expected what "
            'preprocessing.describe gave, such as {"name": "vgg", "options": {}}. It says which '
            "preprocessing weights want, and its options. Was it changed by hand, or written by a "
            "later version?"
        ) from error


def _find_options(base: Preprocessing, other: Preprocessing) -> dict[str, object]:
    """Return the options of `other` that differ from those of `base`."""
    values = {field.name: getattr(other, field.name) for field in dataclasses.fields(other)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value != getattr(base, name)
    }

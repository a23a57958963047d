"""The errors penstock raises, each a subclass of the builtin it refines."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import math
import os
import re
from collections.abc import Collection, Iterable
from numbers import Integral
from types import MemberDescriptorType
from typing import Any


class LayerContextError(RuntimeError):
    """A layer was called where no program is being built."""


class ProgramError(ValueError):
    """A program function does something no program can be derived from."""


class FeedError(ValueError):
    """A feed, batch or sample does not fit what the program declared with `layers.data`."""


class ReaderError(ValueError):
    """A reader cannot be read the way it was asked to be."""


class PreprocessingError(ValueError):
    """An image, a size or an option does not suit a preprocessing."""


class ParameterError(ValueError):
    """Parameters, in a file or in memory, do not fit the program."""


class ExportError(ValueError):
    """A program cannot be written in another format, or is not the same there."""


class ModelFileError(ValueError):
    """The file of an inference model is damaged, foreign, or does not fit the devices here."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, of another network, or could not be written."""


class FolderInUseError(RuntimeError):
    """Another run is at work in the folder."""


class PeerError(RuntimeError):
    """Another process of the run failed, was lost, or does something else than this one.

    Attributes:
      exit_code: what this process should end with, where nobody catches it.
      is_of_this_call: whether the call is wrong that this process makes, and not what another did.
    """

    exit_code = 1
    is_of_this_call = False


class NonFiniteError(FloatingPointError):
    """A loss was nan or infinite."""


class UnknownNameError(KeyError):
    """A name is not among those that exist."""

    def __str__(self) -> str:
        """Return the message as it is; `KeyError` would print its repr, with quotes and escapes."""
        return str(self.args[0]) if self.args else ""


def message(thing: str, got: object, expected: str, why: str, remedy: str) -> str:
    """Return the text of an error, in the shape that every error of penstock has.

    >>> message("batch_size", 0, "an int >= 1", "A batch holds samples", "Pass e.g. 64")
    'batch_size got 0, expected an int >= 1. A batch holds samples. Pass e.g. 64.'
    """
    # A sentence may end with the question of a hint.
    return f"{thing} got {got}, expected {expected}. {why}. {remedy}.".replace("?.", "?")


def _begin(thing: str, got: str) -> str:
    """Return how an error begins: `k got 0` for `k`, `topk got k=0` for `topk got k=`."""
    return f"{thing}{got}" if " got " in thing else f"{thing} got {got}"


def check_int(
    thing: str, value: Any, least: int, why: str = "", error: type[ValueError] = ValueError
) -> int:
    """Return `value` if it is an integer of at least `least`.

    Arguments:
      thing: what got it, such as `firstn(n)`, or `layers.topk got k=`.
      why: a sentence about it, and perhaps what to do.
      error: the class of the error that is raised otherwise.

    >>> check_int("firstn(n)", 3, 0, "It counts samples.")
    3
    """
    # `True` is an `int` to Python, and no count.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        expected = f"an integer of {least} or more. {why}".strip()
        raise error(f"{_begin(thing, repr(value))}, expected {expected}")
    return int(value)


_INTERVALS = {
    "[]": "from {} to {}",
    "[)": "from {} to below {}",
    "(]": "above {} and up to {}",
    "()": "between {} and {}",
}


def check_number(
    thing: str, value: Any, interval: str, why: str, error: type[ValueError] = ValueError
) -> None:
    """Raise unless a number lies in an interval, without the ends that have a round bracket.

    >>> check_number("layers.dropout got dropout_prob=", 0.5, "[0, 1]", "It is a share.")
    """
    (low, high), ends = map(float, interval[1:-1].split(",")), interval[0] + interval[-1]
    try:
        is_above = low < value if ends[0] == "(" else low <= value
        is_inside = is_above and (value < high if ends[1] == ")" else value <= high)
    except (TypeError, ValueError):  # such as text, or an array of several
        is_inside = False
    if not is_inside or isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":
        # Of more digits than `:g` has: a table may have millions of rows.
        expected = "number " + _INTERVALS[ends].format(f"{low:.12g}", f"{high:.12g}")
        if high == math.inf:
            kind = "number" if ends[1] == "]" else "finite number"
            least = f"{low:.12g}"
            expected = f"{kind} above {least}" if ends[0] == "(" else f"{kind} of {least} or more"
        raise error(f"{_begin(thing, repr(value))}, expected a {expected}. {why}")


def check_known(
    thing: str,
    name: Any,
    names: Collection[object],
    why: str = "",
    error: type[Exception] = UnknownNameError,
    expected: str = "",
) -> None:
    """Raise unless a name is among those that exist; `thing` is what got it.

    `expected` is said instead of all the names where they are many.

    >>> check_known("layers.pool2d got pool_type=", "max", ("max", "avg"))
    """
    if name not in list(names):
        expected = expected or "one of " * (len(names) > 1) + listed(names)
        sentences = f"{expected}. {why}".strip()
        hint = nearest(name, map(str, names)) if isinstance(name, str) else ""
        raise error(f"{_begin(thing, repr(name))}, expected {sentences}{hint}")


def check_type(
    thing: str,
    value: object,
    kind: Any,
    expected: str,
    error: type[Exception] = TypeError,
) -> None:
    """Raise unless a value is of a kind, as `isinstance` takes it; `expected` ends the error.

    >>> check_type("fluid.layers.data got append_batch_size=", True, bool, "a bool.")
    """
    # `True` is an `int` to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        # Of arrays and other objects it is the class that says what is wrong.
        is_short = value is None or isinstance(value, bool | int | float | str)
        got = repr(value) if is_short else type(value).__name__
        raise error(f"{_begin(thing, got)}, expected {expected}")


# Of a value in a program.
check_choice = functools.partial(check_known, error=ProgramError)


def nearest(name: str, names: Iterable[str], question: str = "Did you mean") -> str:
    """Return `" Did you mean 'x'?"` for the known name closest to `name`, or an empty string.

    >>> nearest("imgae", ["image", "label"])
    " Did you mean 'image'?"
    >>> nearest("resnet152", ["resnet50", "resnet_v1_152"])
    " Did you mean 'resnet_v1_152'?"
    """
    names = list(names)
    # A number says more than letters.
    numbers = set(re.findall(r"\d{2,}", name))
    alike = [other for other in names if numbers & set(re.findall(r"\d{2,}", other))]
    matches = difflib.get_close_matches(name, alike, n=1)
    matches = matches or difflib.get_close_matches(name, names, n=1)
    return f" {question} {matches[0]!r}?" if matches else ""


def listed(names: Iterable[object], most: int | None = None) -> str:
    """Return `'a', 'b'` for names, or `nothing` when there are none; with `and 3 more` for many."""
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - most} more" if most is not None and len(shown) > most else ""
    return (", ".join(shown[:most]) or "nothing") + more


def find_os_error(error: BaseException, path: str | os.PathLike[str]) -> OSError | None:
    """Return the error of the system that an exception stands for, about a path; None without one.

    safetensors raises its own, with the system's number at the end.

    >>> find_os_error(ValueError("I/O error: No space left on device (os error 28)"), "runs/a")
    OSError(28, 'No space left on device')
    """
    number = getattr(error, "errno", None)
    if number is None:
        match = re.search(r"\(os error (\d+)\)", str(error))
        number = None if match is None else int(match[1])
    return None if number is None else OSError(number, os.strerror(number), os.fspath(path))


def check_installed(package: str, extra: str, owner: str) -> None:
    """Raise unless an optional package is installed; it is not imported.

    Arguments:
      package: the name it is imported by.
      extra: the extra of penstock that installs it.
      owner: what needs it.

    Raises:
      ModuleNotFoundError: it is not there; says what to install.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{owner} got no {package}, expected the package to be installed. It is optional, as "
            f'only some runs need it. Run pip install "penstock[{extra}]".',
            name=package,
        )


class FixedAttributes:
    """A base of classes whose public attributes are their `__slots__`: another is an error.

    A slot keeps the value that it got first, unless it is one of `_settable`. A user's subclass
    without slots may set what it likes.
    """

    __slots__ = ("__dict__", "__weakref__")
    _settable = frozenset[str]()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute that something reads.

        Raises:
          AttributeError: there is no such attribute, or it stays what it is.
        """
        owner = type(self)
        member = getattr(owner, name, None)
        is_fixed = isinstance(member, MemberDescriptorType) and name not in self._settable
        is_read_only = (isinstance(member, property) and member.fset is None) or callable(member)
        is_refused = member is None or (is_fixed and hasattr(self, name)) or is_read_only
        if is_refused and not name.startswith("_") and "__slots__" in vars(owner):
            raise AttributeError(_refuse(owner, name))
        super().__setattr__(name, value)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled or copied, with a `TypeError` that says what to do."""
        name = type(self).__name__
        raise TypeError(
            f"{name} got a pickle or a copy, expected neither. It holds compiled programs and "
            f"arrays on devices. Save its parameters, and make another {name} where it is needed."
        )


def _refuse(owner: type[FixedAttributes], name: str) -> str:
    """Return why an attribute cannot be set, and what to do."""
    described = {
        member: str(inspect.getdoc(getattr(owner, member)))
        for member in dir(owner)
        if getattr(getattr(owner, member), "fset", None) is not None or member in owner._settable
    }
    expected = f"only {listed(described)} to be set" if described else "no attribute to be set"
    why = "It stays as it was made" if hasattr(owner, name) else "Nothing would read it"
    # By what they say of themselves too: `learning_rate` is near nothing by its letters.
    words = name.replace("_", " ")
    meant = [member for member, text in described.items() if words in text]
    if callable(getattr(owner, name, None)):
        why, remedy = "It is a method", f"Call {owner.__name__}.{name}(...)"
    elif name in inspect.signature(owner.__init__).parameters:
        remedy = f"Pass it where the object is made: {owner.__name__}(..., {name}=...)"
    elif meant or nearest(name, described):
        remedy = f"Did you mean {meant[0]!r}?" if meant else nearest(name, described).strip()
    else:
        remedy = f"See help({owner.__name__})"
    return message(f"{owner.__name__}.{name}", "a value", expected, why, remedy)

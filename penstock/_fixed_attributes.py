"""Objects that have the attributes of their class and no others."""

from __future__ import annotations

import inspect
from types import MemberDescriptorType

from penstock._errors import listed, message, nearest


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
        known = getattr(owner, name, None)
        is_fixed = isinstance(known, MemberDescriptorType) and name not in self._settable
        is_read_only = isinstance(known, property) and known.fset is None
        is_refused = known is None or (is_fixed and hasattr(self, name)) or is_read_only
        if is_refused and not name.startswith("_") and "__slots__" in vars(owner):
            raise AttributeError(_refuse(owner, name))
        super().__setattr__(name, value)


def _refuse(owner: type[FixedAttributes], name: str) -> str:
    """Return why an attribute cannot be set, and what to do."""
    described = {
        each: str(inspect.getdoc(getattr(owner, each)))
        for each in dir(owner)
        if getattr(getattr(owner, each), "fset", None) is not None or each in owner._settable
    }
    expected = f"only {listed(described)} to be set" if described else "no attribute to be set"
    why = "It stays as it was made" if hasattr(owner, name) else "Nothing would read it"
    # By what they say of themselves too: `learning_rate` is near nothing by its letters.
    words = name.replace("_", " ")
    meant = [each for each, text in described.items() if words in text]
    if name in inspect.signature(owner.__init__).parameters:
        remedy = f"Pass it where the object is made: {owner.__name__}(..., {name}=...)"
    elif meant or nearest(name, described):
        remedy = f"Did you mean {meant[0]!r}?" if meant else nearest(name, described).strip()
    else:
        remedy = f"See help({owner.__name__})"
    return message(f"{owner.__name__}.{name}", "a value", expected, why, remedy)

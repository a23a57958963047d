"""What every public name of penstock keeps to."""

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from tests.source_tree import PACKAGE, module_name, read_sources


def is_ours(value: Any) -> bool:
    """Say whether a function or class was written in penstock."""
    return str(getattr(value, "__module__", "")).split(".")[0] == PACKAGE


TAKES_ANY_NAME = {f"{PACKAGE}.handlers.report.page.add"}
"""The attributes of an element of a page have the names that HTML and SVG give them."""


def public_modules() -> list[ModuleType]:
    """Return the modules whose dotted name has no underscored part."""
    names = [module_name(path) for path in read_sources(PACKAGE)]
    public = [name for name in names if not any(part[0] == "_" for part in name.split("."))]
    return [importlib.import_module(name) for name in public]


def public_names(module: ModuleType) -> dict[str, Any]:
    """Return the functions and classes of penstock that `module` offers.

    They are those in `__all__`; without it, what a package imports and what a module defines.
    """
    is_package = hasattr(module, "__path__")
    named = getattr(module, "__all__", None)
    offered = {
        name: value
        for name, value in vars(module).items()
        if (not name.startswith("_") if named is None else name in named)
        and isinstance(value, type | FunctionType)
        and is_ours(value)
    }
    if named is not None or is_package:
        return offered
    return {name: value for name, value in offered.items() if value.__module__ == module.__name__}


def public_members(owner: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public methods and properties written in a class, `__init__` included."""
    for name, member in vars(owner).items():
        function = inspect.unwrap(getattr(member, "fget", getattr(member, "func", member)))
        function = getattr(function, "__func__", function)
        is_public = not name.startswith("_") or name in {"__init__", "__call__"}
        if not is_public or not isinstance(function, FunctionType):
            continue
        # A dataclass writes methods too, and a Protocol brings its own __init__.
        if function.__code__.co_filename != "<string>" and function.__module__ != "typing":
            yield name, function


def documented(name: str, value: Any) -> list[str]:
    """Return the problem with a docstring, if any; dataclasses write one themselves."""
    text = value.__doc__ or ""
    is_generated = isinstance(value, type) and text.startswith(f"{value.__name__}(")
    if name.endswith(".__init__") or (text.strip() and not is_generated):
        return []
    return [f"{name} got no docstring, expected one. It is public."]


def annotated(name: str, function: FunctionType) -> list[str]:
    """Return the problems with a signature: what lacks an annotation, and `**` arguments."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    missing = [p.name for p in parameters if p.annotation is p.empty]
    if signature.return_annotation is signature.empty:
        missing.append("return")
    problems = [f"{name} got no annotation for {', '.join(missing)}, expected one."] * bool(missing)
    # Checkers know the names of a typed dict, and `**options: Unpack[...]` refuses others.
    keywords = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    is_open = any(not str(p.annotation).startswith("Unpack[") for p in keywords)
    if name not in TAKES_ANY_NAME and is_open:
        problems.append(f"{name} got a ** argument, expected names. Misspelt ones would pass.")
    return problems


def find_problems(name: str, value: Any) -> list[str]:
    """Return a line for each problem of one public function, or of a class and its members."""
    if isinstance(value, FunctionType):
        return documented(name, value) + annotated(name, value)
    problems = documented(name, value)
    for member, function in public_members(value):
        problems += documented(f"{name}.{member}", function)
        problems += annotated(f"{name}.{member}", function)
    return problems


def test_public_names_are_documented_and_annotated():
    objects = {
        (value.__module__, value.__qualname__): (f"{module.__name__}.{name}", value)
        for module in public_modules()
        for name, value in public_names(module).items()
    }
    problems = [line for name, value in objects.values() for line in find_problems(name, value)]
    assert not problems, "\n".join(problems)


def test_public_modules_are_documented():
    undocumented = [module.__name__ for module in public_modules() if not module.__doc__]
    assert not undocumented

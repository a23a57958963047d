"""From the words of a command line to a frozen dataclass of flags, by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock._errors import nearest
from penstock.commands._flags._checks import UsageError, words_of
from penstock.commands._flags._file import read_config

Flags = TypeVar("Flags")

_BOOLEANS = {"true": "True", "false": "False", "1": "True", "0": "False"}


def parse(
    kind: type[Flags],
    words: Sequence[str],
    *,
    prog: str,
    defaults: Mapping[str, Any],
    epilog: str = "",
    takes_paths: bool = False,
) -> tuple[Flags, dict[str, str], list[str]]:
    """Return the flags that words stand for, the texts of those that were given, and the paths.

    Words win over the file that `--config` names, and that over the defaults.

    Arguments:
      kind: a dataclass whose fields are flags, or sections of them.
      prog: the command, as `--help` calls it.
      defaults: functions that make the flags without any words, by the boolean flag that chooses
        them; `""` for none.
      epilog: printed below the list of flags.
      takes_paths: whether words that are no flags may be among them.

    Raises:
      UsageError: an unknown flag or a wrong value.
      SystemExit: after `--help`.
    """
    if "--help" in words or "-h" in words:
        _tyro(kind, ["--help"], prog, defaults[""](), is_quiet=False, epilog=epilog)
    hints = flag_types(kind)
    given, paths = _by_name(words, hints, prog)
    if paths and not takes_paths:
        raise UsageError(
            f"{prog} got {paths[0]!r}, expected flags: --NAME=VALUE. `{prog} --help` lists them."
        )
    if "config" in given:
        given = {**read_config(given["config"], hints), **given}
    given = {name: _spelled(text, hints[name]) for name, text in given.items()}
    import_plugins(given.get("plugin"))
    chosen = next((name for name in defaults if name and given.get(name) == "True"), "")
    default = defaults[chosen]()
    canonical = [f"--{name}={text}" for name, text in given.items()]
    _check_types(given, hints)
    try:
        return _tyro(kind, canonical, prog, default, is_quiet=True), given, paths
    except SystemExit:
        raise _diagnosed(given, hints, default) from None


def flag_types(kind: Any) -> dict[str, Any]:
    """Return the type of each flag of a dataclass of sections, by name."""
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        types |= flag_types(hint) if dataclasses.is_dataclass(hint) else {name: hint}
    return types


def _tyro(
    kind: type[Flags],
    words: list[str],
    prog: str,
    default: Any,
    *,
    is_quiet: bool,
    epilog: str = "",
) -> Flags:
    import tyro
    from tyro import conf

    config = (conf.OmitArgPrefixes, conf.FlagConversionOff)
    # What it says of mistakes takes ten lines; `_diagnosed` says it in one.
    silence = contextlib.redirect_stderr(io.StringIO()) if is_quiet else contextlib.nullcontext()
    try:
        with silence:
            return tyro.cli(
                kind, prog=prog, args=words, default=default, config=config, use_underscores=True
            )
    except SystemExit:
        if epilog and not is_quiet:
            print(epilog)
        raise


def _by_name(
    words: Sequence[str], hints: Mapping[str, Any], prog: str
) -> tuple[dict[str, str], list[str]]:
    """Return the texts of flags by name, the last of several, and the words that are no flags."""
    given: dict[str, str] = {}
    paths: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            paths.append(word)
            continue
        name, equals, text = word[2:].partition("=")
        name = name if name in hints else name.replace("-", "_")
        if name not in hints:
            raise UsageError(
                f"{prog} got the flag '--{name}', expected one that `{prog} --help` lists."
                + nearest(f"--{name}", [f"--{each}" for each in hints])
            )
        if not equals:
            is_flag = hints[name] is bool
            has_value = bool(rest) and not rest[0].startswith("--")
            if is_flag and not (has_value and rest[0].lower() in _BOOLEANS):
                text = "True"
            elif has_value:
                text = rest.pop(0)
            else:
                raise UsageError(f"--{name} got no value, expected --{name}=VALUE.")
        given[name] = text
    return given, paths


def _spelled(text: str, hint: Any) -> str:
    """Return a value's text as tyro takes it: booleans as Python writes them."""
    return _BOOLEANS.get(text.lower(), text) if hint is bool else text


def _check_types(given: Mapping[str, str], hints: Mapping[str, Any]) -> None:
    for name, text in given.items():
        kinds = _kinds(hints[name])
        choices = [c for k in kinds if get_origin(k) is Literal for c in get_args(k)]
        if text in choices or (text == "None" and type(None) in kinds) or str in kinds:
            continue
        if not any(_converts(text, kind) for kind in kinds):
            raise UsageError(f"--{name} got {text!r}, expected {_said(kinds, choices)}.")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that a union stands for, or the one type that it is."""
    is_union = isinstance(hint, UnionType) or get_origin(hint) is Union
    return get_args(hint) if is_union else (hint,)


def _converts(text: str, kind: Any) -> bool:
    if kind is bool:
        return text in ("True", "False")
    try:
        return kind in (int, float) and kind(text) is not None
    except ValueError:
        return False


def _said(kinds: Sequence[Any], choices: Sequence[str]) -> str:
    names = {bool: "True or False", int: "an integer", float: "a number"}
    return " or ".join([*(names[kind] for kind in kinds if kind in names), *choices])


def _diagnosed(given: Mapping[str, str], hints: Mapping[str, Any], default: Any) -> UsageError:
    """Return what a section says to the values it was given."""
    parts = [getattr(default, field.name) for field in dataclasses.fields(default)]
    for section in (*parts, default):
        if not dataclasses.is_dataclass(section) or isinstance(section, type):
            continue
        mine = {f.name for f in dataclasses.fields(section)} & set(given)
        try:
            dataclasses.replace(section, **{n: _value(given[n], hints[n]) for n in mine})
        except (ValueError, KeyError) as error:
            return UsageError(str(error))
    return UsageError(f"the flags got {dict(given)!r}, expected values that --help describes.")


def _value(text: str, hint: Any) -> Any:
    kinds = _kinds(hint)
    if text == "None" and type(None) in kinds:
        return None
    if bool in kinds:
        return text == "True"
    for kind in (int, float):
        if kind in kinds and _converts(text, kind):
            return kind(text)
    return text


def import_plugins(plugins: str | None) -> None:
    """Import modules by name, or files by path; they register what they bring.

    Raises:
      UsageError: one cannot be imported.
    """
    sys.path.insert(0, "")  # as `python -m` has it: modules of the current folder
    try:
        for word in words_of(plugins):
            _import_file(Path(word)) if word.endswith(".py") else importlib.import_module(word)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UsageError(
            f"--plugin got {plugins!r}, expected modules that can be imported, by name or as a .py "
            f"file: {error}. Run in their folder, or set PYTHONPATH."
        ) from error
    finally:
        sys.path.remove("")


def _import_file(path: Path) -> None:
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        return  # it has registered already
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

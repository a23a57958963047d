"""The parser of every command: a frozen dataclass of flags becomes a parser of `argparse`.

A field is a flag. Its annotation says how text becomes a value, its line under `Arguments:` is the
help. A field that is a dataclass itself is a section of flags.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import itertools
import os
import re
import shutil
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from penstock._errors import nearest
from penstock._text_tables import wrap_words
from penstock.commands._failures import UsageError, split_words, suggest_flag

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_EXPECTED = {bool: "True or False", int: "an integer", float: "a number"}
_METAVARS = {bool: "True|False", int: "INT", float: "FLOAT"}
# What text stands for, by the end of the flag's name.
_TEXTS = {"dir": "FOLDER", "name": "NAME", "names": "NAMES", "files": "FILES", "url": "URL"}
_TEXTS |= {"config": "FILE"}
_MAX_USAGE_CHARS = 20


FlagsT = TypeVar("FlagsT", bound="DataclassInstance")
FlagValue = bool | int | float | str | tuple[str, ...] | Mapping[str, bool | float | str] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of a command, or an argument that is given by its place."""

    name: str
    kinds: tuple[object, ...]  # the types that its value may have
    choices: tuple[str, ...]  # the names that it may be, where they are a closed set
    default: Any  # `dataclasses.MISSING` where it has to be given
    help: str
    section: str
    metavar: str
    short: str | None = None  # another name, such as `-n`
    is_positional: bool = False
    nargs: Literal["?", "+"] | None = None
    is_repeated: bool = False  # it may be given several times, and all its values count

    def read(self, text: str) -> FlagValue:
        """Return the value that a text stands for, else raise an `ArgumentTypeError`."""
        # `penstock train "$PHOTOS"` without such a variable: as a path, it is the current folder.
        if self.is_positional and not text:
            raise argparse.ArgumentTypeError("got '', expected a name. Is a shell variable unset?")
        # Before the kinds: a choice may read like a number, or like None.
        is_word = self.is_positional and not self.choices
        if is_word or self.is_repeated or text in self.choices:
            return text
        # The way to take back, on the command line, what a file of flags gives.
        if text == "None" and NoneType in self.kinds:
            return None
        for kind in self.kinds:
            if kind is str:
                # Of `--output_dir=~/runs` no shell replaces it.
                is_path = self.metavar.startswith(("FILE", "FOLDER"))
                return os.path.expanduser(text) if is_path else text
            if kind is bool and text.lower() in _BOOLEANS:
                return _BOOLEANS[text.lower()]
            if kind is int or kind is float:
                with contextlib.suppress(ValueError):
                    return kind(text)
            if get_origin(kind) is tuple:
                return split_words(text)
            if get_origin(kind) is Mapping:
                return dict(_read_pair(word) for word in split_words(text))
        names = ", ".join(filter(None, self.choices))
        words = [_EXPECTED[kind] for kind in self.kinds if kind in _EXPECTED]
        expected = " or ".join([*words, *self.choices]) if words else f"one of: {names}"
        hint = nearest(text, self.choices)
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}.{hint}")

    def format_usage(self) -> str:
        """Return how it stands in the first line of `--help`, where it cannot be left out."""
        if not self.is_positional:
            name = f"{self.short} " if self.short else f"--{self.name}="
            return f"{name}{self.metavar if len(self.metavar) <= _MAX_USAGE_CHARS else 'NAME'} "
        forms = {None: "{0} ", "?": "[{0}] ", "+": "{0} [{0} ...] "}
        return forms[self.nargs].format(self.metavar)


def positional(metavar: str, nargs: Literal["?", "+"] | None = None) -> Any:
    """Return the field of an argument that is given by its place; `Flag` says what they mean."""
    default = None if nargs == "?" else dataclasses.MISSING
    options = {"metavar": metavar, "nargs": nargs, "is_positional": True}
    return dataclasses.field(default=default, metadata=options)


def option(
    metavar: str,
    default: Any = dataclasses.MISSING,
    *,
    short: str | None = None,
    is_repeated: bool = False,
) -> Any:
    """Return the field of a flag with what does not follow from its name and type."""
    options = {"metavar": metavar, "short": short, "is_repeated": is_repeated}
    return dataclasses.field(default=default, metadata=options)


def list_flags(kind: type[DataclassInstance], section: str = "") -> dict[str, Flag]:
    """Return the flags of a dataclass and of its sections, by name."""
    # One function without calls of our own: `penstock train` has a hundred flags.
    flags: dict[str, Flag] = {}
    hints, helps = typing.get_type_hints(kind), _read_helps(kind)
    own = inspect.get_annotations(kind)
    # A class's own flags come before those of its parent.
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name not in own):
        hint, default = hints[field.name], field.default
        if dataclasses.is_dataclass(hint):
            flags |= list_flags(typing.cast(Any, hint), field.name)
            continue
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        is_union = isinstance(hint, UnionType) or get_origin(hint) is Union
        kinds = get_args(hint) if is_union else (hint,)
        choices: list[str] = []
        words: list[str] = []
        for part in kinds:
            if get_origin(part) is Literal:
                choices += get_args(part)
            elif part in _METAVARS:
                words.append(_METAVARS[part])
        text = _TEXTS.get(re.split(r"_|(?<=[a-z])(?=[A-Z])", field.name)[-1].lower(), "TEXT")
        options = {"metavar": "|".join([*words, *filter(None, choices)]) or text, **field.metadata}
        flags[field.name] = Flag(
            name=field.name,
            kinds=kinds,
            choices=tuple(choices),
            default=default,
            help=helps[field.name],
            section=section,
            **options,
        )
    return flags


def _read_helps(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and its parents say of each argument."""
    helps: dict[str, str] = {}
    # The parents first: what a class says of a flag itself replaces their words.
    for parent in reversed(kind.__mro__):
        section = inspect.cleandoc(parent.__doc__ or "").partition("\nArguments:\n")[2]
        entries = re.findall(r"^  ([\w, ]+): (.*(?:\n    .*)*)", section.split("\n\n")[0], re.M)
        for names, text in entries:
            helps |= dict.fromkeys(names.split(", "), " ".join(text.replace("`", "").split()))
    # As sentences, which `Arguments:` begins with small letters.
    return {name: text[:1].upper() + text[1:] for name, text in helps.items()}


def parse(
    kind: type[FlagsT],
    words: Sequence[str],
    *,
    epilog: str = "",
    usage: str = "",
    extra: Mapping[str, Flag] = MappingProxyType({}),
    help_flag: str = "--help",
    unused: str = "",
) -> tuple[FlagsT, dict[str, FlagValue]]:
    """Return the flags that the words of a command line stand for.

    The last of several values wins. Dashes in names are underscores.

    Arguments:
      kind: a dataclass of flags in the module of the command; its docstring is the help.
      usage: what stands behind the flags in its first line.
      extra: flags that the command takes and `kind` does not have.
      unused: the section of flags that the help has by name only, as those without effect.

    Returns:
      The flags, and the values of those of `extra` that were given, by name.
    """
    prog = f"penstock {kind.__module__.rpartition('.')[2].replace('_', '-')}"
    own = list_flags(kind)
    flags = {**own, **extra}
    needed = [f for f in flags.values() if f.is_positional or f.default is dataclasses.MISSING]
    parser = _Parser(
        prog=prog,
        usage=f"{prog} {''.join([flag.format_usage() for flag in needed])}[OPTIONS]{usage}",
        description=wrap_words(" ".join(describe(kind).split()), _find_columns()),
        epilog=epilog,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Only what was given is in the result: defaults are the dataclass's own, or a file's.
        argument_default=argparse.SUPPRESS,
        # An abbreviation would change its meaning with the next flag that is added.
        allow_abbrev=False,
    )
    names = ("-h", help_flag) if help_flag == "--help" else (help_flag,)
    parser.add_argument(
        *names, action="help", default=argparse.SUPPRESS, help="Show this help and end."
    )
    _add_flags(parser, flags, unused)
    lists = f"`{prog} {help_flag}` lists"
    spelled = list(_spell(words, flags, help_flag, lists))
    given_flags, unknown = parser.parse_known_intermixed_args(spelled)
    if unknown:
        example = f"as in `{parser.usage}`. {lists} them"
        raise UsageError(f"got {unknown[0]!r}, expected flags: --NAME=VALUE, {example}.")
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in vars(given_flags).items()}
    with raise_usage_errors():
        made = kind(**{name: value for name, value in values.items() if name in own})
    return made, {name: value for name, value in values.items() if name in extra}


def _add_flags(parser: _Parser, flags: Mapping[str, Flag], unused: str) -> None:
    """Add flags to a parser by section, those of the section `unused` in one line."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for flag in flags.values():
        is_unused = bool(unused) and flag.section == unused
        if flag.section not in groups:
            names = [f"--{other.name}" for other in flags.values() if other.section == unused]
            listed = wrap_words(", ".join(names), _find_columns() - 2, "  ") if is_unused else None
            title = flag.section + " options"
            title = "without effect here" if is_unused and unused == "unused" else title
            groups[flag.section] = parser.add_argument_group(title, listed)
        default = ",".join(flag.default) if isinstance(flag.default, tuple) else flag.default
        is_shown = default not in (None, "", {}, dataclasses.MISSING)
        # With blanks a long list has places for line breaks.
        shown = f" (default: {str(default).replace(',', ', ')})" if is_shown else ""
        options: dict[str, Any] = {"type": flag.read, "metavar": flag.metavar}
        # argparse expands percent signs.
        text = f"{flag.help}{shown}".replace("%", "%%")
        options["help"] = argparse.SUPPRESS if is_unused else text
        if flag.is_positional:
            # Another default argparse would read as a word.
            groups[flag.section].add_argument(flag.name, nargs=flag.nargs, default=None, **options)
            continue
        # `--json` alone is `--json=True`.
        if flag.kinds == (bool,):
            options |= {"nargs": "?", "const": True}
        if flag.is_repeated:
            options["action"] = "append"
        names = [*filter(None, [flag.short]), f"--{flag.name}"]
        is_required = flag.default is dataclasses.MISSING
        groups[flag.section].add_argument(*names, required=is_required, **options)


def _find_columns() -> int:
    # As argparse has it for the flags.
    return shutil.get_terminal_size().columns - 2


def _spell(
    words: Sequence[str], flags: Mapping[str, Flag], help_flag: str, lists: str
) -> Iterator[str]:
    """Yield words as argparse takes them: underscores in names, a value for each boolean.

    argparse would take the word behind `--json` for its value, also where that is a path.
    """
    # Behind `--` there are no flags.
    end = words.index("--") if "--" in words else len(words)
    for number, (word, following) in enumerate(itertools.pairwise([*words, ""])):
        if not word.startswith("--") or number >= end:
            yield word
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        # Before argparse looks for what is missing, and with the nearest name.
        if name not in (*flags, help_flag[2:]):
            hint = suggest_flag(name, list(flags))
            raise UsageError(f"got the flag '--{name}', expected one that {lists}.{hint}")
        is_boolean = name in flags and flags[name].kinds == (bool,)
        if is_boolean and not equals and following.lower() not in _BOOLEANS:
            equals, value = "=", "True"
        yield f"--{name}{equals}{value}"


class _Parser(argparse.ArgumentParser):
    """Raise what argparse says of a mistake, in our words."""

    def error(self, message: str) -> NoReturn:
        text = re.sub(r"^argument (\S+): ", r"\1 ", message)
        if text.endswith(" expected one argument"):
            names = text.split()[0].split("/")
            value = str(self._option_string_actions[names[0]].metavar)
            value = value if len(value) <= _MAX_USAGE_CHARS else "NAME"
            text = f"{names[-1]} got no value, expected {names[-1]}={value}"
        needed = re.sub(r"^the following arguments are required: ", "", text)
        if needed != text:
            it = "them" if "," in needed else "it"
            text = f"got no {needed}, expected {it}, as in `{self.usage}`."
            for action in self._actions:
                if not action.option_strings and str(action.metavar) in needed.split(", "):
                    text += f" {action.metavar}: {action.help}"
        raise UsageError(text if text.endswith((".", "?")) else f"{text}.")


def _read_pair(word: str) -> tuple[str, float | bool | str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"got {word!r}, expected NAME=VALUE, several between commas: b1=0.95,nesterov=True."
        )
    if text in ("True", "False"):
        return name, text == "True"
    with contextlib.suppress(ValueError):
        return name, float(text)
    return name, text


def describe(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\nArguments:")[0]


@contextlib.contextmanager
def raise_usage_errors() -> Iterator[None]:
    """Raise what a dataclass of flags says of its values as a `UsageError`."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise UsageError(str(error)) from error

"""What every file and every public name of penstock keeps to."""

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from penstock import ProgramBuilder, layers
from tests.source_tree import PACKAGE, module_name, parse, read_sources

TREES = (PACKAGE, "examples", "benchmarks", "tests")
MAX_FILE_LINES = 400
# One idea in one longer room: a file that passes the limit is thought about, not cut in two.
LONGER_ROOMS = {
    "penstock/trainer/_trainer.py": 432,
    "penstock/_device_batches.py": 480,
    "penstock/_metrics.py": 480,
}
MAX_EXAMPLE_LINES = 120
MAX_FUNCTION_LINES = 60  # signature and docstring counted, decorators not
MAX_METHODS = 20
MAX_BUILDER_NAMES = 16
MAX_SHARE_OF_ANY = 0.03  # pytrees that no checker follows


def find_long_files(sources: dict[str, str]) -> list[str]:
    """Return a line for each file over its limit."""
    limits = {
        path: MAX_EXAMPLE_LINES
        if path.startswith("examples/")
        else LONGER_ROOMS.get(path, MAX_FILE_LINES)
        for path in sources
    }
    return [
        f"{path}: got {num_lines} lines, expected at most {limits[path]}. Split it by idea."
        for path, num_lines in ((path, source.count("\n")) for path, source in sources.items())
        if num_lines > limits[path]
    ]


def find_long_functions(sources: dict[str, str]) -> list[str]:
    """Return a line for each function over the limit, methods and nested functions included."""
    return [
        f"{path}:{node.lineno}: {node.name} got {num_lines} lines, expected at most "
        f"{MAX_FUNCTION_LINES}. Move a part of it into a function with a name."
        for path, source in sources.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (num_lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def find_classes(sources: dict[str, str]) -> list[tuple[str, ast.ClassDef]]:
    """Return path and node of every class."""
    return [
        (path, node)
        for path, source in sources.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.ClassDef)
    ]


def find_large_classes(sources: dict[str, str]) -> list[str]:
    """Return a line for each class of too many methods, properties and `__init__` included."""
    return [
        f"{path}:{node.lineno}: {node.name} got {count} methods, expected at most {MAX_METHODS}. "
        f"Give a part of what it keeps to a class of its own."
        for path, node in find_classes(sources)
        if (count := sum(isinstance(each, ast.FunctionDef) for each in node.body)) > MAX_METHODS
    ]


def last_name(node: ast.expr) -> str:
    """Return `Base` of `module.Base[int]`."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(node).rpartition(".")[2]


def has_code(function: ast.FunctionDef) -> bool:
    """Say whether a function has more than a docstring or an ellipsis."""
    only = function.body[0] if len(function.body) == 1 else None
    return not (isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant))


def find_mixins(sources: dict[str, str]) -> list[str]:
    """Return a line for each class of one child that nothing makes and no user is offered.

    One class cut in two has to be read in two places. What has no code, as a marker or a protocol,
    is no half.
    """
    classes = find_classes(sources)
    children = Counter(name for _, node in classes for name in map(last_name, node.bases))
    made = {
        last_name(node.func)
        for source in sources.values()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Call)
    }
    return [
        f"{path}:{node.lineno}: {node.name} got one child and is never made, expected a class that "
        f"stands for itself. Put the two together, or give the child an object of it."
        for path, node in classes
        if children[node.name] == 1
        and node.name not in made
        and any(isinstance(each, ast.FunctionDef) and has_code(each) for each in node.body)
        and ("/_" in path or node.name.startswith("_"))
    ]


def builder_names() -> list[str]:
    """Return the public methods, properties and attributes of a `ProgramBuilder`."""
    builder = ProgramBuilder(lambda: layers.mean(layers.data("x", shape=[1])))
    return sorted(name for name in dir(builder) if not name.startswith("_"))


def is_ours(value: Any) -> bool:
    """Say whether a function or class was written in penstock."""
    return str(getattr(value, "__module__", "")).split(".")[0] == PACKAGE


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
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
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


def annotations(source: str) -> Iterator[ast.expr]:
    """Yield the annotation of each parameter and of each result of a file's functions."""
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
            yield from filter(None, [*(each.annotation for each in arguments), node.returns])


def is_untyped(annotation: ast.expr) -> bool:
    names = (node.id for node in ast.walk(annotation) if isinstance(node, ast.Name))
    return "Any" in names


def test_files_are_short():
    long = find_long_files(read_sources(*TREES))
    assert not long, "\n".join(long)


def test_functions_are_short():
    long = find_long_functions(read_sources(*TREES))
    assert not long, "\n".join(long)


def test_classes_are_small():
    large = find_large_classes(read_sources(PACKAGE))
    assert not large, "\n".join(large)


def test_no_class_is_cut_in_two():
    mixins = find_mixins(read_sources(PACKAGE))
    assert not mixins, "\n".join(mixins)


def test_builder_offers_what_a_loop_of_ones_own_needs():
    names = builder_names()
    assert len(names) <= MAX_BUILDER_NAMES, names


def test_public_names_are_documented_and_annotated():
    found = {
        (value.__module__, value.__qualname__): (f"{module.__name__}.{name}", value)
        for module in public_modules()
        for name, value in public_names(module).items()
    }
    problems = [line for name, value in found.values() for line in find_problems(name, value)]
    assert not problems, "\n".join(problems)


def test_signatures_have_types_that_a_checker_follows():
    sources = read_sources(PACKAGE).values()
    untyped = [is_untyped(each) for source in sources for each in annotations(source)]
    assert sum(untyped) < MAX_SHARE_OF_ANY * len(untyped)


def test_share_of_any_counts_parameters_and_results():
    source = "def f(a: Any, *b: list[Any], c: int) -> dict[str, int]:\n    return lambda x: x\n"
    assert [is_untyped(each) for each in annotations(source)] == [True, True, False, False]


def test_public_modules_are_documented():
    undocumented = [module.__name__ for module in public_modules() if not module.__doc__]
    assert not undocumented


def bare(x, **options: int) -> None:
    pass


class Bare:
    def __init__(self, size):
        self.size = size

    @property
    def doubled(self) -> int:
        return 2 * self.size


def test_problems_of_a_function_and_of_a_class_are_found():
    assert find_problems("bare", bare) == [
        "bare got no docstring, expected one. It is public.",
        "bare got no annotation for x, expected one.",
        "bare got a ** argument, expected names. Misspelt ones would pass.",
    ]
    assert find_problems("Bare", Bare) == [
        "Bare got no docstring, expected one. It is public.",
        "Bare.__init__ got no annotation for size, return, expected one.",
        "Bare.doubled got no docstring, expected one. It is public.",
    ]


@pytest.mark.parametrize("path", ["penstock/long.py", "examples/long.py"])
def test_file_over_its_limit_is_found(path: str):
    limit = MAX_EXAMPLE_LINES if path.startswith("examples") else MAX_FILE_LINES
    assert not find_long_files({path: "\n" * limit})
    assert find_long_files({path: "\n" * (limit + 1)})


def test_function_over_the_limit_is_found():
    body = "    pass\n" * (MAX_FUNCTION_LINES - 1)
    assert not find_long_functions({"penstock/long.py": f"def f():\n{body}"})
    assert find_long_functions({"penstock/long.py": f"def f():\n{body}    pass\n"})


def test_class_of_too_many_methods_is_found():
    methods = "".join(f"    def f{n}(self): ...\n" for n in range(MAX_METHODS))
    assert not find_large_classes({"penstock/large.py": f"class Large:\n{methods}"})
    one_more = f"class Large:\n{methods}    @property\n    def g(self): ...\n"
    assert find_large_classes({"penstock/large.py": one_more})


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("class Child(Half): ...", True),
        ("class Child(module.Half[int]): ...", True),
        ("class Child(Half): ...\nclass Other(Half): ...", False),
        ("class Child(Half): ...\nhalf = Half()", False),
        ("class Child: ...", False),
    ],
)
def test_class_that_is_cut_in_two_is_found(source: str, is_found: bool):
    half = "class Half:\n    def f(self): return 1"
    sources = {"penstock/trainer/_half.py": half, "penstock/trainer/_child.py": source}
    assert len(find_mixins(sources)) == is_found

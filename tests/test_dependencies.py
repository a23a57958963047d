"""What penstock takes from other packages, and what importing it costs."""

import ast
import functools
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping

import pytest

import penstock
from tests.source_tree import PACKAGE, ROOT, read_sources

PINNED_EXTRAS = (
    *("test", "dev", "docs", "grain", "keras", "mlflow", "plot", "ray", "tensorboard", "wandb"),
    "bench",
)


def names_of(requirements: Iterable[str]) -> set[str]:
    """Return the packages that lines such as `jax[cuda13]>=0.10; python_version < "3.12"` name."""
    return {re.split(r"[^\w.-]", line)[0] for line in requirements}


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return what pyproject.toml asks for: always, and by extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"], project["optional-dependencies"]


def imports_of_others(source: str) -> list[tuple[int, str]]:
    """Return line and top-level name of each import of what is neither Python's nor ours."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.lineno, node.module.split(".")[0]))
    return [(line, name) for line, name in found if name not in {PACKAGE, *sys.stdlib_module_names}]


@functools.cache
def installed() -> Mapping[str, list[str]]:
    """Return the installed packages by the module they hold; reads what each has installed."""
    return importlib.metadata.packages_distributions()


def packages_holding(name: str) -> set[str]:
    """Return the installed packages that hold the module `name`; its own name when none does."""
    holders = installed().get(name, [name])
    return {re.sub(r"[-_.]+", "-", holder).lower() for holder in holders}


def test_every_package_imported_is_declared():
    core, extras = requirements()
    declared = names_of(itertools.chain(core, *extras.values()))
    undeclared = [
        f"{path}:{line}: imports {name}, expected only packages that pyproject.toml names. "
        f"Add it there and to constraints.txt."
        for path, source in read_sources(PACKAGE).items()
        for line, name in imports_of_others(source)
        if not declared & packages_holding(name)
    ]
    assert not undeclared, "\n".join(undeclared)


def test_every_core_dependency_is_imported():
    imported = {
        holder
        for source in read_sources(PACKAGE).values()
        for _, name in imports_of_others(source)
        for holder in packages_holding(name)
    }
    idle = sorted(names_of(requirements()[0]) - imported)
    assert not idle, (
        f"pyproject.toml got the core dependencies {idle}, expected only what {PACKAGE} imports "
        "somewhere. Everyone would install them for nothing. Make an extra of each, or use it."
    )


def test_every_package_that_make_installs_is_pinned():
    core, extras = requirements()
    declared = names_of(itertools.chain(core, *(extras[name] for name in PINNED_EXTRAS)))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = names_of(line for line in lines if "==" in line)
    assert declared <= pinned | {PACKAGE}


def test_importing_penstock_loads_nothing_beyond_jax_flax_and_optax():
    # Against a process that has loaded those three, since flax loads rich and msgpack by itself.
    program = (
        "import sys, flax.linen, jax, optax; before = set(sys.modules); import penstock;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split()) - sys.stdlib_module_names
    loaded -= {"flax", "jax", "jaxlib", "optax"}  # parts of them that load on first use
    loaded -= {"__mp_main__"}  # multiprocessing's second name for the main module
    assert loaded == {PACKAGE}, (
        f"`import penstock` got {sorted(loaded - {PACKAGE})} too, expected jax, flax and optax. "
        f"The rest is imported in the function that uses it."
    )


@pytest.mark.parametrize("name", ["fluid", "models", "preprocessing"])
def test_packages_on_top_of_the_core_load_on_first_use(name):
    program = (
        "import sys, penstock as ps;"
        f"assert 'penstock.{name}' not in sys.modules and '{name}' in dir(ps);"
        f"assert ps.{name} is sys.modules['penstock.{name}'] is ps.{name};"
        f"assert dir(ps.{name})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_commands_and_readers_load_without_jax():
    program = "import sys, penstock.commands, penstock.readers; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr


def test_names_loaded_on_first_use_are_those_that_a_type_checker_sees():
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen | {"__version__"} <= set(dir(penstock))
    assert seen == {*penstock._PACKAGES, *penstock._MODULE_OF}
    assert all(hasattr(penstock, name) for name in seen)


def test_every_public_package_is_an_attribute():
    folders = {path.split("/")[1].removesuffix(".py") for path in read_sources(PACKAGE)}
    public = {name for name in folders if not name.startswith("_")} - {"commands"}
    assert {name for name in public if not hasattr(penstock, name)} == set()
    assert public <= set(dir(penstock))


def test_attribute_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'model'"):
        penstock.model  # noqa: B018


def test_makefile_installs_nothing_without_the_constraints():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "pip install" in line and "@" in line]
    assert len(installs) > 1
    assert all("--constraint " in line for line in installs), installs

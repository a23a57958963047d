"""What penstock takes from other packages, and what importing it costs."""

import ast
import functools
import importlib.metadata
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping

import pytest

import penstock
from tests.source_tree import PACKAGE, ROOT, import_nodes, read_sources

PINNED_EXTRAS = (
    *("test", "dev", "docs", "grain", "keras", "mlflow", "onnx", "plot", "ray", "tensorboard"),
    "wandb",
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
    imports: list[tuple[int, str]] = []
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif node.module and not node.level:
            imports.append((node.lineno, node.module.split(".")[0]))
    # `_typeshed` comes with checkers of types, for whom alone it is imported.
    ours = {PACKAGE, "_typeshed", *sys.stdlib_module_names}
    return [(line, name) for line, name in imports if name not in ours]


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
    # JAX imports it to write an exported program, and does not ask for it.
    idle = sorted(names_of(requirements()[0]) - imported - {"flatbuffers"})
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


LOADING = """
import importlib.util, json, os, sys
# Where libtpu is installed, which JAX notes for its children, it is asked whether there is a TPU.
os.environ.pop("TPU_LIBRARY_PATH", None)
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *at: None if name == "libtpu" else find_spec(name, *at)
before = set(sys.modules)

def note(name):
    noted[name] = sorted({name.partition(".")[0] for name in set(sys.modules) - before})

noted = {}
import penstock as ps
note("penstock")
import penstock.commands.launch, penstock.distributed.local_launch
note("penstock launch")
import penstock.commands, penstock.readers
ps.distributed.initialize()
note("commands, readers, and a process that is alone")
late = {name: f"penstock.{name}" in sys.modules for name in ("fluid", "models", "preprocessing")}
noted["in dir"] = [name for name in (*late, "distributed") if name in dir(ps)]
import flax.linen, jax, optax
before = set(sys.modules)
ps.Trainer
note("Trainer")
late |= {name: f"penstock.{name}" in sys.modules for name in late if not late[name]}
noted["early"] = [name for name, is_loaded in late.items() if is_loaded]
for name in late:
    assert getattr(ps, name) is sys.modules[f"penstock.{name}"] is getattr(ps, name)
    assert dir(getattr(ps, name))
assert "initialize" in dir(ps.distributed)
print(json.dumps(noted))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Return what each import has loaded that is not Python's own, in one new process."""
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Parts of jax, flax and optax load on first use, and __mp_main__ is multiprocessing's name for
    # the main module.
    usual = {*sys.stdlib_module_names, "__mp_main__", "flax", "jax", "jaxlib", "numpy", "optax"}
    noted = json.loads(done.stdout)
    return noted | {"Trainer": sorted(set(noted["Trainer"]) - usual)}


def test_importing_penstock_loads_nothing_beyond_jax_flax_and_optax(loaded):
    assert set(loaded["penstock"]) <= {PACKAGE, *sys.stdlib_module_names}
    assert loaded["Trainer"] == [PACKAGE], (
        f"`penstock.Trainer` got {loaded['Trainer']}, expected jax, flax and optax. The rest is "
        "imported in the function that uses it."
    )


def test_launcher_commands_readers_and_a_process_that_is_alone_need_no_jax(loaded):
    assert not {"jax", "numpy"} & set(loaded["penstock launch"])
    assert "jax" not in loaded["commands, readers, and a process that is alone"]


def test_packages_on_top_of_the_core_load_on_first_use(loaded):
    assert loaded["in dir"] == ["fluid", "models", "preprocessing", "distributed"]
    assert loaded["early"] == []


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


def test_attribute_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'model'"):
        penstock.model  # noqa: B018


def test_every_public_package_is_an_attribute():
    folders = {path.split("/")[1].removesuffix(".py") for path in read_sources(PACKAGE)}
    public = {name for name in folders if not name.startswith("_")} - {"commands"}
    assert {name for name in public if not hasattr(penstock, name)} == set()
    assert public <= set(dir(penstock))


def test_makefile_installs_nothing_without_the_constraints():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "pip install" in line and "@" in line]
    assert len(installs) > 1
    assert all("--constraint " in line for line in installs), installs

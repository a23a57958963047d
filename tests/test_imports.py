"""Which part of penstock may import which, how deep, and the one part that compiles."""

import ast
import graphlib

from tests.source_tree import (
    PACKAGE,
    absolute_base,
    find_imports,
    import_nodes,
    lines_for_types,
    module_name,
    parse,
    read_sources,
)

ROOT_LAYER = "__init__"

# A layer is a module or package directly in penstock; each may import itself and what stands here.
# Nothing but the command line may import penstock itself: it is for users.
TABLE = """
_errors:
events: _parameter_updates
_checkpoint: _checksums _errors _files
_checksums:
_cores:
_compile_cache: _files
_files: _errors
_first_use:
_folder_lock: _errors
_parent_watch:
_interrupts: _errors
_mesh: _errors
_model_file: _errors _files
_metrics: _errors _program metrics
metrics: _errors _program layers
_image_resizing:
_parameter_names: _errors
_parameter_updates: _parameter_names
_parameters: _checkpoint _errors _files _mesh _model_file _parameter_names _program
_json_values:
_text_tables:
_version:
distributed: _cores _errors _first_use _interrupts _parent_watch _version
_weight_files: _errors
readers: _checksums _cores _errors _files _first_use _image_resizing _json_values _parent_watch
preprocessing: _errors _program layers
handlers: _checksums _errors _files _image_resizing _json_values _parameter_updates _reader_items
  _text_tables events
_program: _errors _mesh _parameter_names
layers: _errors _first_use _mesh _parameter_names _program
_tracing: _errors _mesh _metrics _parameter_names _program metrics
models: _errors _parameter_names _program _weight_files layers preprocessing program_builder
optimizers: _errors
_reader_items: _errors _parent_watch _program events
_sequence_feeds: _errors _program
_padded_batches: _errors _mesh _program _sequence_feeds
program_builder: _padded_batches _errors _mesh _metrics _model_file _parameter_names
  _parameter_updates _parameters _program _text_tables _tracing distributed layers metrics
  optimizers
# The trainer: a pass over a reader is one for both.
inferencer: _reader_items _padded_batches _errors _mesh _parameter_names _parameters _program
  program_builder trainer
onnx_export: _errors _files _parameter_names _tracing program_builder
tensorflow_export: _errors _files _parameter_names onnx_export program_builder
# Without flax and optax, and so without what trains.
inference_model: _compile_cache _padded_batches _errors _files _mesh _model_file _program
  preprocessing readers
"""
ABOVE = """
fluid: _reader_items _checkpoint _errors _mesh _program events inferencer layers optimizers
  program_builder trainer
serving: _errors _model_file _version inference_model
sklearn: layers readers trainer
"""


def read_table(text: str) -> dict[str, set[str]]:
    """Return what each row allows; a row may go on in an indented line, and # begins a comment."""
    rows = [line for line in text.strip().replace("\n  ", " ").splitlines() if line[0] != "#"]
    return {name: set(names.split()) for name, _, names in (row.partition(":") for row in rows)}


ALLOWED = read_table(TABLE)
ALLOWED["trainer"] = set(ALLOWED) - {
    "inference_model",
    "onnx_export",
    "tensorflow_export",
    "handlers",
    "inferencer",
    "models",
    "preprocessing",
}
ALLOWED |= read_table(ABOVE)
ALLOWED[ROOT_LAYER] = set(ALLOWED)
ALLOWED["commands"] = set(ALLOWED)
ALLOWED["__main__"] = {"commands"}

COMPILERS = {"jit", "pjit", "pmap"}
COMPILING_LAYER = "program_builder"
# And what runs a file's programs, which holds no state and knows no flax.
# One line may say it beside: what it decorates runs inside a program's trace, and compiles nothing.
TRACED_ONCE = (
    "penstock/_program/frame.py",
    "decorate: Any = functools.partial(jax.jit, static_argnames=static, inline=inline)",
)


def layer_of(module: str) -> str:
    """Return the layer a module belongs to: `layers` for `penstock.layers.conv`."""
    return module.split(".")[1] if "." in module else ROOT_LAYER


def find_violations(sources: dict[str, str]) -> list[str]:
    """Return a line for each file whose layer the table lacks and each import it does not allow."""
    layers = {path: layer_of(module_name(path)) for path in sources}
    violations = [
        f"{path}: the layer {layer} got no row in the table, expected one. "
        f"Add it to ALLOWED in tests/test_imports.py with what it may import."
        for path, layer in layers.items()
        if layer not in ALLOWED
    ]
    for path, line, module in find_imports(sources):
        layer = layers[path]
        # What it names for checkers of types loads on first use, when all of Fluid's room can.
        if module_name(path) == f"{PACKAGE}.layers" and line in lines_for_types(sources[path]):
            continue
        if layer in ALLOWED and layer_of(module) not in {layer, *ALLOWED[layer]}:
            expected = ", ".join(sorted(ALLOWED[layer])) or "nothing of ours"
            violations.append(f"{path}:{line}: {layer} imports {module}, expected only: {expected}")
    return violations


def find_private_uses(sources: dict[str, str]) -> list[str]:
    """Return a line for each import of an underscored module or name of another package.

    What lies directly in penstock is shared by the whole project, underscore or not.
    """
    modules = {module_name(path) for path in sources}
    lines = []
    for path, source in sources.items():
        importer = f"{module_name(path)}."
        for line, name in named_imports(source, path):
            parts = name.split(".")
            owners = [".".join(parts[:n]) for n in range(2, len(parts)) if is_private(parts[n])]
            if parts[:2] == [PACKAGE, "_version"] or not owners:
                continue
            # A module without a package of its own keeps its private names to its neighbours.
            folder = owners[0] if is_package(owners[0], modules) else owners[0].rpartition(".")[0]
            if folder == PACKAGE or not importer.startswith(f"{folder}."):
                lines.append(
                    f"{path}:{line}: imports {name}, expected only names without an underscore of "
                    f"{owners[0]}. Give it a public name where it lives."
                )
    return lines


def is_private(name: str) -> bool:
    """Say whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def is_package(module: str, modules: set[str]) -> bool:
    """Say whether a module has modules below it."""
    return any(other.startswith(f"{module}.") for other in modules)


def named_imports(source: str, path: str) -> list[tuple[int, str]]:
    """Return line and full dotted name of everything of ours that a file imports."""
    imports = []
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        else:
            base = absolute_base(node, path)
            imports += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return [(line, name) for line, name in imports if name.split(".")[0] == PACKAGE]


def find_cycle(sources: dict[str, str]) -> list[str]:
    """Return the modules of an import cycle in their order, or nothing where there is none."""
    graph: dict[str, set[str]] = {}
    for path, _, module in find_imports(sources):
        graph.setdefault(module_name(path), set()).add(module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]  # graphlib lists each module before the one that imports it
    return []


def find_compilers(sources: dict[str, str]) -> list[str]:
    """Return a line for every use of a JAX compiler outside the layer that compiles."""
    return [
        f"{path}:{line}: uses {name}, expected only {COMPILING_LAYER} to. "
        f"What is compiled elsewhere is neither counted nor donated its state."
        for path, source in sources.items()
        if layer_of(module_name(path)) not in (COMPILING_LAYER, "inference_model")
        and any(name in source for name in COMPILERS)
        for line, name in names_used(source)
        if name in COMPILERS and (path, source.splitlines()[line - 1].strip()) != TRACED_ONCE
    ]


def names_used(source: str) -> list[tuple[int, str]]:
    """Return line and name of every attribute and every `from ... import` in a source."""
    nodes = ast.walk(parse(source))
    attributes = [(node.lineno, node.attr) for node in nodes if isinstance(node, ast.Attribute)]
    imports = [node for node in import_nodes(source) if isinstance(node, ast.ImportFrom)]
    return attributes + [(node.lineno, alias.name) for node in imports for alias in node.names]


def test_imports_follow_the_table():
    violations = find_violations(read_sources(PACKAGE))
    assert not violations, "\n".join(violations)


def test_modules_import_each_other_without_a_cycle():
    cycle = find_cycle(read_sources(PACKAGE))
    assert not cycle, (
        f"{' imports '.join(cycle)}: a cycle, expected none. Within a package import the file that "
        f"defines a name, not the package; between two, move what they share below both."
    )


def test_only_the_program_builder_compiles():
    compilers = find_compilers(read_sources(PACKAGE))
    assert not compilers, "\n".join(compilers)


def test_packages_leave_each_others_underscores_alone():
    uses = find_private_uses(read_sources(PACKAGE))
    assert not uses, "\n".join(uses)


def test_table_allows_no_cycle():
    graphlib.TopologicalSorter(ALLOWED).prepare()

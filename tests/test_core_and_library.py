"""The core and the library: what a training run is made of, and what is built with it."""

from tests.source_tree import PACKAGE, find_imports, lines_for_types, module_name, read_sources

# A maintainer of the core never opens the library. CONTRIBUTING.md says what may enter either. A
# row covers what lies below it, unless a longer one does.
CORE_ROWS = """
_checkpoint _checksums _compile_cache _cores _errors _files _first_use _folder_lock
_image_resizing _interrupts _mesh
_metrics _model_file _padded_batches _parameter_names _parameter_updates _parameters _parent_watch
_program _reader_items _sequence_feeds _json_values _text_tables _tracing _version distributed
events handlers inferencer layers metrics optimizers program_builder readers._batching
readers._contract readers._errors readers._foreign readers._order readers._random_access_reader
readers._read_ahead readers._read_options readers._tree readers.decorators readers.in_memory
readers.random_access readers.sharding trainer
"""
LIBRARY_ROWS = """
__main__ _weight_files commands fluid inference_model models onnx_export preprocessing
readers._archives readers.convert readers.datasets readers.images readers.ofrecord_files
readers.records readers.splitting readers.tfds_sets readers.tfrecord_files serving sklearn
tensorflow_export
"""
CORE, LIBRARY = (set(rows.split()) for rows in (CORE_ROWS, LIBRARY_ROWS))
BRIDGES = {PACKAGE, f"{PACKAGE}.readers", f"{PACKAGE}.layers"}
"""They load what they offer of the library on first use; only checkers of types see the names."""


def part_of(module: str) -> str:
    """Return "core", "library" or "bridge"; nothing for a module that no table has."""
    if module in BRIDGES:
        return "bridge"
    parts = module.split(".")[1:]
    for size in range(len(parts), 0, -1):
        name = ".".join(parts[:size])
        if name in CORE or name in LIBRARY:
            return "core" if name in CORE else "library"
    return ""


def find_library_uses(sources: dict[str, str]) -> list[str]:
    """Return a line for each import of the library in the core, wherever in a file it stands."""
    lines = [
        f"{path}: {module_name(path)} is neither core nor library. Add it to CORE or LIBRARY in "
        f"tests/test_core_and_library.py; CONTRIBUTING.md says which."
        for path in sources
        if not part_of(module_name(path))
    ]
    for_types = {(path, line) for path in sources for line in lines_for_types(sources[path])}
    for path, line, module in find_imports(sources):
        part = part_of(module_name(path))
        if part == "bridge" and (path, line) in for_types:
            continue
        if part in ("core", "bridge") and part_of(module) in ("library", "bridge"):
            lines.append(
                f"{path}:{line}: the core imports {module}, expected nothing of the library. Move "
                f"what both need into the core, or let the library hand it in."
            )
    return lines


def test_core_never_imports_the_library():
    uses = find_library_uses(read_sources(PACKAGE))
    assert not uses, "\n".join(uses)


def test_tables_of_core_and_library_name_what_exists():
    modules = {module_name(path) for path in read_sources(PACKAGE)}
    assert {f"{PACKAGE}.{name}" for name in CORE | LIBRARY} <= modules
    assert not CORE & LIBRARY

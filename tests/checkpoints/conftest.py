"""Compiled programs on disk, for the modules that train one network again and again."""

import os

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

CACHE = {
    "jax_compilation_cache_dir": None,  # a folder of the session's
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def compiled_once(cache_folder):
    """Keep what XLA compiles: resuming is about the state, and a resumed program is the same."""
    settings = {**CACHE, "jax_compilation_cache_dir": cache_folder}
    before = {name: getattr(jax.config, name) for name in settings}
    _set(settings)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setitem(os.environ, name.upper(), str(value))  # for the processes tests start
        yield
    _set(before)


def _set(settings):
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()

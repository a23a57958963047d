"""How every test runs: strict JAX on eight virtual CPU devices, and real data to learn from."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import compiling
from tests.source_tree import ROOT

if "jax" in sys.modules:
    raise RuntimeError(
        "jax got imported before tests/conftest.py, expected after. It reads its settings when it "
        "starts. Find the pytest plugin that imports it, and disable it."
    )

# Settings go through the environment, so that the processes tests start run the same way.

# The CPU, also on a machine with an accelerator: the tests count on eight devices. To try another
# platform, PENSTOCK_TEST_PLATFORM=cuda make test.
PLATFORM = os.environ.get("PENSTOCK_TEST_PLATFORM", "cpu")
os.environ["JAX_PLATFORMS"] = PLATFORM if PLATFORM == "cpu" else f"{PLATFORM},cpu"
# Each test process would otherwise reserve three quarters of the accelerator's memory.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

# Each flag once, also in a process that inherits them: programs are kept by them too.
XLA_FLAGS = f"{os.environ.get('XLA_FLAGS', '')} {compiling.xla_flags(num_devices=8)}"
os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys(XLA_FLAGS.split()))
# Virtual devices wait for each other in an all-reduce, each holding a thread of XLA's pool, which
# has a thread a core. With fewer cores than devices they wait forever and abort after 40 s.
# NPROC, read when the backend starts, sizes the pool instead: two executions of eight devices.
os.environ["NPROC"] = "16"

# Many tests compile the same programs, and processes that tests start compile them anew: what is
# compiled is kept, by the program's text and the versions, and the next run takes it from there,
# that of a fresh clone too. A fresh run takes a fifth less of the processor, another a third of it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # else that of the process that started this one
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiling.folder())
    compiling.prune(compiling.folder())
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Where Python is told to keep no bytecode, each of the hundreds of processes that tests start would
# compile JAX's sources again: 1.7 of the 2.6 s of processor time that its start takes.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    bytecode = compiling.folder().parent / "bytecode"
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(bytecode))

# A shell without job control starts what it puts behind an ampersand with SIGINT ignored, and so
# would be the signals that tests send to themselves and to scripts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup make test-all` ignores SIGHUP, and so would what tests start and send it to.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# [3] + [2, 3] is more often a forgotten axis than a wish.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"


# A tenth of the suite's time went into garbage collection: traces are many small objects, which
# set it off, and all that is imported and collected, a million objects, was searched each time.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but seldom, and never what was made up to now."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `quick` does not name of a test's variants."""
    variants: dict[str, list[bool]] = {}
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick is not None:
            test, _, variant = item.nodeid.partition("[")
            is_quick = any(re.search(rf"\b{re.escape(word)}", variant) for word in quick.args)
            variants.setdefault(test, []).append(is_quick)
            if not is_quick:
                item.add_marker(pytest.mark.slow)
    for test, are_quick in variants.items():
        if len(are_quick) > 1 and not any(are_quick):
            raise pytest.UsageError(f"{test}: no variant has a word of its mark quick.")


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Let a test register what no other sees: a page of docs, a plugin, a network of its own."""
    # Not at the top: JAX reads the settings above when it is imported.
    from penstock import models
    from penstock.models import _registry as of_models
    from penstock.preprocessing import _registry as of_preprocessing
    from penstock.readers.datasets import registry as of_datasets

    models.names()  # registers the library's
    registered: list[dict[str, Any]] = [
        of_models._MODELS,
        of_preprocessing._PREPROCESSINGS,
        of_datasets.DATASETS,
    ]
    before = [dict(mapping) for mapping in registered]
    imported = set(sys.modules)
    yield
    for registry, names in zip(registered, before, strict=True):
        if registry != names:
            registry.clear()
            registry.update(names)
    for name in set(sys.modules) - imported:  # a plugin registers when it is imported
        path = getattr(sys.modules[name], "__file__", None) or ""
        if "." not in name and path.startswith(str(ROOT / "tests")):
            del sys.modules[name]


class Digits(NamedTuple):
    """Handwritten digits: images [N, 8, 8, 1] float32 in 0..1, labels [N] int32 in 0..9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@pytest.fixture(scope="session")
def digits() -> Digits:
    """scikit-learn's 1797 digits in a fixed order: 1438 to train on, 359 to test on."""
    from sklearn.datasets import load_digits  # most tests need no data, and this import takes 1 s

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = (bunch.images[order, :, :, np.newaxis] / 16).astype(np.float32)
    labels = bunch.target[order].astype(np.int32)
    num_train = len(labels) - len(labels) // 5
    parts = Digits(images[:num_train], labels[:num_train], images[num_train:], labels[num_train:])
    for part in parts:
        part.setflags(write=False)  # shared by all tests of the session
    return parts

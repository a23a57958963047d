"""What a network leaves behind is given back before the next one."""

import gc
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give back what a slow test has compiled and computed: two of the largest filled 24 GiB.

    What JAX has compiled it keeps, and a state in a cycle waits for the collector, which comes
    seldom here.
    """
    yield
    if request.node.get_closest_marker("slow"):
        jax.clear_caches()
        gc.collect()

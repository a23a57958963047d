"""Programs in other people's styles: a network means on eight devices what it means on one."""

import importlib

import jax
import pytest

import penstock as ps
from tests.battery.harness import CASES, assert_same, reference, run

THEMES = (
    *("callbacks", "contrastive", "control_flow", "generative", "gradients", "losses", "modules"),
    *("operations", "partitioner", "programs", "reductions"),
)
for theme in THEMES:
    importlib.import_module(f"tests.battery.{theme}")

# One of each kind, for the quick tests.
QUICK = ("contrastive-simclr", "modules-BatchNorms")


# Sizes that a place tells apart; `test_padding` has all of them on eight. On one device every batch
# is full. Three divide 24 and 21 alike. Beside a second axis all that four do not divide are whole.
PLACES = {
    "1": (lambda: jax.devices()[:1], (5,)),
    "3": (lambda: jax.devices()[:3], (21, 5, 1)),
    "4x2": (lambda: ps.mesh(data=4, model=2), (24, 5)),
}


def variants():
    """Yield each case on one and three devices and on a mesh."""
    for name, case in CASES.items():
        for place in PLACES:
            # On one device what cannot run without penstock would be compared with itself.
            if place != "1" or case.bare is not None:
                is_quick = name in QUICK and place == "3"
                marks = () if is_quick else (pytest.mark.slow,)
                yield pytest.param(name, place, id=f"{name}-{place}", marks=marks)


@pytest.mark.quick("contrastive-simclr-3")
@pytest.mark.parametrize(("name", "place"), list(variants()))
def test_program_trains_and_tests_as_on_one_device_alone(name, place):
    case, expected = CASES[name], reference(name)
    devices, sizes = PLACES[place]
    made = run(case, devices(), [size for size in sizes if size in case.sizes])
    for size in made:
        assert_same(made[size], expected[size], case.rtol, f"{size} examples:")

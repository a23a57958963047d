"""Programs in other people's styles: a network means on eight devices what it means on one."""

import importlib

import jax
import pytest

from tests.battery.harness import CASES, assert_same, reference, run

THEMES = (
    *("callbacks", "contrastive", "control_flow", "generative", "gradients", "losses", "modules"),
    *("operations", "partitioner", "programs", "reductions"),
)
for theme in THEMES:
    importlib.import_module(f"tests.battery.{theme}")

# One of each kind, for the quick tests.
QUICK = ("contrastive-simclr", "modules-BatchNorms")


def variants():
    for name, case in CASES.items():
        for num_devices in (1, 3, 8):
            # On one device what cannot run without penstock would be compared with itself.
            if num_devices > 1 or case.bare is not None:
                is_quick = name in QUICK and num_devices == 8
                marks = () if is_quick else (pytest.mark.slow,)
                yield pytest.param(name, num_devices, id=f"{name}-{num_devices}", marks=marks)


@pytest.mark.parametrize(("name", "num_devices"), list(variants()))
def test_program_trains_and_tests_as_on_one_device_alone(name, num_devices):
    case, expected = CASES[name], reference(name)
    made = run(case, jax.devices()[:num_devices], case.sizes)
    for size in case.sizes:
        assert_same(made[size], expected[size], case.rtol, f"{size} examples:")

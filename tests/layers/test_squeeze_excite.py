"""Squeeze and excite: against the definition in numpy."""

import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal


@pytest.mark.parametrize("gate", ["sigmoid", lambda x: np.float32(0.5) * x])
def test_squeeze_excite_equals_its_definition(gate):
    x = normal(2, 3, 5, 4)

    def function():
        return layers.squeeze_excite(layers.data("x", [3, 5, 4]), 2, gate_act=gate)

    variables = initial(function)
    part = variables["params"]["squeeze_excite_0"]
    squeezed = np.maximum(x.mean((1, 2)) @ part["squeeze"]["w"] + part["squeeze"]["b"], 0)
    gates = squeezed @ part["expand"]["w"] + part["expand"]["b"]
    gates = 1 / (1 + np.exp(-gates)) if gate == "sigmoid" else gates * 0.5
    expected = x * gates[:, None, None, :]
    np.testing.assert_allclose(infer(function, {"x": x}), expected, rtol=1e-5, atol=1e-6)


def test_squeeze_excite_of_a_vector_says_that_it_takes_images():
    with pytest.raises(ProgramError, match=r"layers.squeeze_excite got an input of shape .*, exp"):
        initial(lambda: layers.squeeze_excite(layers.data("x", [4]), 2))

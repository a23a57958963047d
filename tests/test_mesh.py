"""Places: every accepted form, and what is said of others."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import penstock as ps
from penstock._mesh import AXIS, make_mesh
from tests.networks import linear_data, linear_program


def test_place_may_be_nothing_a_platform_a_device_a_list_of_devices_or_a_mesh():
    first, *_, last = jax.devices()
    for place in (None, "cpu"):
        assert list(make_mesh(place).devices.flat) == jax.devices(place)
    assert make_mesh(None).axis_names == (AXIS,)
    mesh = Mesh(np.asarray([last]), (AXIS,))
    assert list(make_mesh(first).devices.flat) == [first]
    assert list(make_mesh([last, first]).devices.flat) == [last, first]
    assert make_mesh(mesh) is mesh


def test_platform_that_is_not_here_is_refused_with_what_is():
    with pytest.raises(ValueError, match="place got 'tpu', expected a platform present here: this"):
        ps.Trainer(linear_program, optax.sgd(0.1), place="tpu")


@pytest.mark.parametrize("make", [Mesh, lambda devices, axes: jax.make_mesh((2, 2), axes)])
def test_mesh_may_have_other_axes_than_that_of_the_batches(make):
    mesh = make(np.asarray(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    losses = []
    for place in (mesh, jax.devices()[0]):
        builder = ps.ProgramBuilder(linear_program, optax.sgd(0.1), place=place)
        state, _ = builder.train(builder.init(), linear_data(5))
        losses.append(float(builder.test(state, linear_data(7))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_mesh_without_the_axis_of_the_batches_is_refused():
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("batch",))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is asserted below)
        ps.ProgramBuilder(linear_program, place=mesh)
    assert str(caught.value) == (
        "place got a Mesh with axes ('batch',), expected one named 'data'. Batches are split over "
        "it. Make it with jax.sharding.Mesh(devices, ('data',))."
    )


@pytest.mark.parametrize("place", [3, [], [0, 1], {"cpu"}])
def test_what_is_no_place_is_refused(place):
    with pytest.raises(TypeError) as caught:
        ps.Inferencer(linear_program, "none", place=place)
    assert str(caught.value).startswith(f"place got {place!r}, expected None, 'cpu', 'gpu', 'tpu',")

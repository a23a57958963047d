"""Fluid's places and the classes that the package offers under Fluid's names."""

import jax
import pytest

import penstock.fluid as fluid
from penstock import layers


def mean_program():
    return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1))


def test_cpu_place_is_one_device():
    trainer = fluid.Trainer(mean_program, fluid.optimizer.SGD(), place=fluid.CPUPlace())
    assert list(trainer.builder.mesh.devices.flat) == [jax.devices("cpu")[0]]


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_cuda_place_without_a_gpu_says_what_to_do():
    with pytest.raises(ValueError, match=r"CUDAPlace got 0, expected a GPU.*fluid.CPUPlace\(\)"):
        fluid.CUDAPlace(0)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
def test_cuda_place_is_the_gpu_of_that_number():
    assert fluid.CUDAPlace(0).platform == "gpu"
    with pytest.raises(ValueError, match="CUDAPlace got 99, expected a number from 0 to"):
        fluid.CUDAPlace(99)


def test_core_says_whether_there_is_a_gpu():
    count = sum(device.platform == "gpu" for device in jax.devices())
    assert fluid.core.get_cuda_device_count() == count
    assert fluid.core.is_compiled_with_cuda() == (count > 0)
    assert fluid.core.CPUPlace() == fluid.CPUPlace()

"""VGG: TF-Slim's, OneFlow's with batch norm, and Fluid's for CIFAR-10."""

import re

import jax
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.models.shapes import changed, count, shapes_of


def test_vgg_bn_drop_is_the_network_of_the_book():
    shapes = shapes_of("vgg_bn_drop", 32, 10)
    in_out = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), *[(256, 256)] * 2]
    in_out += [(256, 512), *[(512, 512)] * 5]
    convolutions = sum(9 * i * o + 3 * o for i, o in in_out)  # kernel, bias, batch norm
    dense = 2 * (512 * 512 + 512) + 2 * 512 + 512 * 10 + 10
    assert count(shapes.trained) == convolutions + dense
    assert shapes.points["pool5"] == (1, 1, 512)
    assert shapes.parameters["fc1/norm/mean"] == (512,)
    assert "fc2/norm/mean" not in shapes.parameters


@pytest.mark.slow
def test_vgg_bn_drop_drops_at_the_rates_of_the_book():
    assert _kept_shares(dropout=0.5) == {0.7: 1, 0.6: 7, 0.5: 2}
    assert not _kept_shares(dropout=0.0)


def _kept_shares(dropout):
    """Return by what the train program divides, and how often: the shares its dropouts keep."""
    model = changed("vgg_bn_drop", dropout=dropout)

    def train_program():
        return layers.mean(model(layers.data("image", [32, 32, 3]), 10)[0])

    builder = ps.ProgramBuilder(train_program, optax.sgd(0.0), place=jax.devices()[:1])
    trace = builder.inspect("train", batch_size=2).jaxpr
    shares = [round(float(share), 3) for share in re.findall(r" = div \w+ (0\.\d+)", trace)]
    return {share: shares.count(share) // 2 for share in shares}  # forward and back

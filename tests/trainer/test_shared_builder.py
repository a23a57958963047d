"""Several trainers of one `ProgramBuilder`: it is compiled once, and each has its own state."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import ProgramError, layers, readers
from tests.networks import linear_data, linear_program, linear_reader, one_device


def make_builder(**options):
    return ps.ProgramBuilder(linear_program, optax.adam(0.1), place=one_device(), **options)


def test_trainers_of_a_builder_compile_once_and_train_as_trainers_of_the_function():
    builder = make_builder()
    for seed in (0, 1, 0):
        trainer = ps.Trainer(builder, seed=seed)
        alone = ps.Trainer(linear_program, optax.adam(0.1), place=one_device(), seed=seed)
        trainer.train(linear_reader(), num_epochs=2)
        alone.train(linear_reader(), num_epochs=2)
        assert trainer.test(linear_reader()) == alone.test(linear_reader())
        np.testing.assert_array_equal(trainer.parameters["fc_0/w"], alone.parameters["fc_0/w"])
        # Batches of 4 and 2, once for all three.
        assert builder.num_compiles == {"train": 2, "test": 2}


def test_freeze_of_one_trainer_leaves_the_other_and_its_later_programs():
    builder = make_builder()
    first, second = ps.Trainer(builder), ps.Trainer(builder)
    first.train(linear_reader())
    first.freeze("*/b")
    bias = first.parameters["fc_0/b"]
    first.train(linear_reader())
    np.testing.assert_array_equal(first.parameters["fc_0/b"], bias)
    # Of a size that no trainer had: the program of `first` is traced for it now.
    second.train(readers.arrays(linear_data(5), 5))
    assert second.parameters["fc_0/b"].item() != 0
    assert all(row.is_trainable for row in builder.parameter_table())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"optimizer": optax.sgd(0.1), "freeze": "*/b"}, "'optimizer', 'freeze'"),
        ({"on_non_finite": "skip"}, "'on_non_finite'"),
    ],
)
def test_argument_that_is_the_builders_is_refused(options, names):
    with pytest.raises(ValueError, match=f"Trainer got a ProgramBuilder and {names}, expected"):
        ps.Trainer(make_builder(), **options)
    ps.Trainer(make_builder(skips_non_finite=True), on_non_finite="skip")


def test_builder_that_only_infers_is_refused():
    builder = ps.ProgramBuilder(infer_func=lambda: layers.data("x", shape=[2]))
    with pytest.raises(ProgramError, match="ProgramBuilder without program_func"):
        ps.Trainer(builder)

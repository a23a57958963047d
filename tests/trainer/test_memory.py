"""What a trainer leaves on the devices once nobody holds it: nothing."""

import gc
import weakref

import optax

import penstock as ps
from tests.networks import linear_program, linear_reader, one_device


def test_trainer_that_nobody_holds_gives_its_memory_back_without_the_collector(tmp_path):
    for options in ({}, {"checkpoint": tmp_path / "a", "on_non_finite": "roll_back"}):
        trainer = ps.Trainer(linear_program, optax.sgd(0.05), place=one_device(), **options)
        trainer.train(linear_reader(), lambda event: getattr(event, "metrics", None))
        trainer.test(linear_reader())
        held = [weakref.ref(trainer), weakref.ref(trainer._engine)]
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            del trainer
            assert [reference() for reference in held] == [None, None]
        finally:
            if is_enabled:
                gc.enable()

"""What is no event handler is refused before training; whose error it is that ends it."""

import functools

import pytest

import penstock as ps
from penstock.events import combine_handlers


class Pair:
    def __call__(self, event, other):
        """Take one argument too many."""


def takes_nothing():
    pass


def takes_two(trainer, event):
    pass


@pytest.mark.parametrize(
    ("handler", "got"),
    [
        (takes_nothing, "takes_nothing()"),
        (takes_two, "takes_two(trainer, event)"),
        (Pair(), "Pair("),
    ],
    ids=["nothing", "two", "object"],
)
def test_handler_that_does_not_take_one_event_is_refused(handler, got):
    with pytest.raises(TypeError) as caught:
        combine_handlers([print, handler])
    assert str(caught.value).startswith(f"event_handler got {got}")
    assert "expected a function of one argument. It is called with one event at a time" in str(
        caught.value
    )


def test_handler_that_is_a_class_is_refused():
    with pytest.raises(TypeError, match=r"got the class Pair, .* Make one: Pair\(\.\.\.\)"):
        combine_handlers(Pair)


def test_handlers_of_every_form_are_taken():
    events = []
    bound = functools.partial(takes_two, None)
    emit = combine_handlers(
        [events.append, bound, lambda event, times=1: None, lambda *events: None, print]
    )
    emit(ps.BeginEpoch(epoch=0, global_step=0))
    assert len(events) == 1


def test_error_that_ended_training_is_the_one_that_is_raised():
    failed = LookupError("first")

    def fail_at_the_end(event):
        raise ValueError("second")

    combine_handlers(fail_at_the_end)(ps.EndTraining("failed", failed, 3))
    assert failed.__notes__ == [
        "The event handler test_error_that_ended_training_is_the_one_that_is_raised.<locals>."
        "fail_at_the_end failed at the end too: ValueError: second"
    ]
    with pytest.raises(ValueError, match="second"):
        combine_handlers(fail_at_the_end)(ps.EndTraining("completed", None, 3))


def test_annotation_may_say_the_type_of_the_metrics():
    def on_step(event: ps.EndStep[tuple[float, float]]) -> float:
        loss, _ = event.metrics
        return loss

    assert on_step(ps.EndStep(0, 0, 0, read=lambda: (0.5, 0.75))) == 0.5

import threading
import time

import pytest

from penstock.readers._ordered_map import OrderedMap


def num_threads() -> int:
    return sum(thread.name.startswith("penstock-reader") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_keep_the_order_of_their_items(workers: int):
    def slow_when_even(item: int) -> int:
        time.sleep(0.002 * (item % 2 == 0))
        return item * 10

    results = OrderedMap(slow_when_even, iter(range(20)), num_workers=workers, num_ahead=6)
    assert list(results) == [item * 10 for item in range(20)]
    results.close()
    assert num_threads() == 0


def test_no_more_items_are_taken_than_may_wait():
    taken: list[int] = []
    items = (taken.append(item) or item for item in range(1000))
    results = OrderedMap(str, items, num_workers=2, num_ahead=5)
    assert [next(results), next(results)] == ["0", "1"]
    assert len(taken) == 6
    results.close()


def test_exception_is_raised_at_its_turn_and_the_rest_follows():
    def fail_at_two(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        return item

    results = OrderedMap(fail_at_two, iter(range(4)), num_workers=2, num_ahead=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError):
        next(results)
    assert list(results) == [3]
    results.close()


def test_closing_early_waits_for_what_runs_and_drops_what_waits():
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        time.sleep(0.01)
        return item

    results = OrderedMap(work, iter(range(1000)), num_workers=2, num_ahead=100)
    next(results)
    results.close()
    results.close()
    assert num_threads() == 0
    assert len(started) < 20
    assert list(results) == []

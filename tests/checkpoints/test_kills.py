"""A training process is killed again and again, and comes to the bits of one that was not."""

import pytest

from benchmarks import __main__ as command
from benchmarks import kill_and_resume


# Half of the kills are aimed at a save. Each process that imports JAX takes seconds.
@pytest.mark.slow
def test_killed_run_ends_with_the_bits_of_one_that_nobody_killed(tmp_path):
    num_kills = 20
    result = kill_and_resume.run(tmp_path, num_kills=num_kills, seed=1)
    assert result.unreadable == []
    assert result.has_equal_bits
    assert sum(result.kills.values()) == num_kills
    assert result.num_read > num_kills
    assert result.resumes > num_kills // 2
    assert result.kills["saving"] > num_kills // 5


def test_options_are_for_one_benchmark_that_has_some(capsys):
    assert command.main(["--kills", "3"]) == 2
    assert command.main(["cold_start", "--kills", "3"]) == 2
    assert command.main(["nothing"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "options ['--kills', '3'] got 0 benchmarks, expected one"
    assert errors[1] == "options ['--kills', '3'] got cold_start, expected one that has options"
    assert errors[2].startswith("unknown benchmarks ['nothing'], expected some of [")
    assert "'kill_and_resume'" in errors[2]

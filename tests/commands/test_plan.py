"""`penstock plan`: the table, JSON, and what it says of mistakes."""

import json

import jax
import pytest

from tests.commands.running import TINY, run, succeed

WORDS = ("plan", *TINY[:2])


def test_plan_of_this_machine_is_a_table_of_two_columns(capsys):
    out, err = succeed(capsys, *WORDS, "--batch_size=4", "--state_sharding=full")
    lines = [line.partition("  ") for line in out.split("\n\n")[0].splitlines()]
    facts = {name: value.strip() for name, _, value in lines}
    assert facts["topology"] == "here"
    assert facts["batch size"] == str(4 * jax.device_count())
    assert facts["fits"] == "yes"
    assert "an estimate by the vendor's rates" in out
    assert "compiling for here" in err


def test_plan_prints_json_and_several_topologies_one_a_row(capsys):
    out, _ = succeed(capsys, *WORDS, "--batch_size=4", "--json")
    (planned,) = json.loads(out)
    assert planned["num_devices"] == jax.device_count()
    assert planned["total_bytes"] == sum(planned["memory_bytes"].values())
    out, _ = succeed(capsys, *WORDS, "--batch_size=4", "--topology=here,here")
    head, first, second = out.split("\n\n")[0].splitlines()
    assert head.split()[:2] == ["topology", "batch"]
    assert first == second


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--topology=v9:4x4", "--topology got 'v9:4x4', expected 'here', or a kind of device"),
        ("--model_name=lenett", "Did you mean 'lenet'?"),
    ],
)
def test_mistakes_are_told(capsys, word, expected):
    status, _, err = run(capsys, *WORDS, word)
    assert status == 2
    assert expected in err

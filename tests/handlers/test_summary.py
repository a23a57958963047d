"""Summary: the table of what is trained."""

import io
import re

import optax

import penstock as ps
from penstock import layers
from penstock.handlers import Summary
from tests.handlers.driving import drive, linear_trainer
from tests.networks import counted_compiles, linear_reader


def network():
    """Return the loss of a network with a frozen layer and running statistics."""
    frozen = layers.ParamAttr(trainable=False)
    hidden = layers.fc(layers.data("x", shape=[4]), size=300, param_attr=frozen, bias_attr=False)
    hidden = layers.batch_norm(hidden)
    return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", [1])))


def summary_of(trainer):
    file = io.StringIO()
    drive(Summary(file=file), trainer=trainer)
    return file.getvalue().splitlines()


def test_table_has_every_entry_and_the_totals_of_what_is_trained_and_what_is_not():
    lines = summary_of(ps.Trainer(network, optax.sgd(0.1), place="cpu"))
    rows = [line.split() for line in lines if "/" in line]
    assert ["fc_0/w", "[4,", "300]", "1,200", "float32", "no"] in rows
    assert ["fc_1/w", "[300,", "1]", "300", "float32", "yes"] in rows
    assert [row[-1] for row in rows] == ["no", "yes", "yes", "yes", "yes", "no", "no"]
    totals = [re.split(r"  +", line) for line in lines[-3:]]
    assert totals == [
        ["trainable", "901", "3.52 KiB"],
        ["non-trainable", "1,800", "7.031 KiB"],
        ["total", "2,701", "10.55 KiB"],
    ]


def test_table_is_printed_once_and_nothing_is_read_or_compiled_for_it():
    trainer, file = linear_trainer(), io.StringIO()
    with counted_compiles() as compiles:
        source = drive(Summary(file=file), trainer=trainer, num_epochs=2)
    assert compiles == []
    assert source.steps == source.epochs == []
    assert file.getvalue().count("total") == 1


def test_summary_goes_to_standard_output_in_real_training(capsys):
    trainer = linear_trainer()
    trainer.train(linear_reader(), Summary())
    assert capsys.readouterr().out.startswith("name    shape   count  dtype    trainable\n")


def test_columns_stand_below_their_heads_and_counts_stand_right():
    head, rule, *rows = summary_of(ps.Trainer(network, optax.sgd(0.1), place="cpu"))[:-4]
    assert head.split() == ["name", "shape", "count", "dtype", "trainable"]
    assert set(rule) == {"-"}
    for name in ("shape", "dtype", "trainable"):
        assert {row[head.index(name) - 1] for row in rows} == {" "}
        assert " " not in {row[head.index(name)] for row in rows}
    right = head.index("count") + len("count")
    assert all(row[right - 1].isdigit() for row in rows)
    assert {row[right] for row in rows} == {" "}

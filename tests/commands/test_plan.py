"""`penstock plan`: the table, JSON, and what it says of mistakes."""

import dataclasses
import json
import math

import jax
import pytest

from penstock.commands import plan
from penstock.handlers.figures import make_figure
from penstock.program_builder import Plan, Rates
from tests.commands.running import TINY, succeed

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


@pytest.mark.slow
def test_plan_prints_json_and_several_topologies_one_a_row(capsys):
    out, _ = succeed(capsys, *WORDS, "--batch_size=4", "--json")
    (planned,) = json.loads(out)
    assert planned["num_devices"] == jax.device_count()
    assert planned["total_bytes"] == sum(planned["memory_bytes"].values())
    out, _ = succeed(capsys, *WORDS, "--batch_size=4", "--topology=here,here")
    head, first, second = out.split("\n\n")[0].splitlines()
    assert head.split()[:2] == ["topology", "batch"]
    assert first == second


def make(topology, num_devices, slowdown=1.0):
    """Return a plan of which a step takes 100 ms, times a slowdown."""
    return Plan(
        topology=topology,
        device_kind="TPU",
        num_devices=num_devices,
        batch_size=100 * num_devices,
        memory_bytes={"parameters": 2**30, "batch": 2**29},
        capacity_bytes=16 * 2**30,
        num_operations=1e11 * slowdown,
        num_bytes=math.nan,
        collectives=None,
        compile_secs=1.0,
        rates=Rates(memory_gib=16, teraflops=1, memory_gb=1, link_gb=1),
    )


def test_plot_has_a_curve_for_each_kind_beside_the_ideal_and_the_memory():
    plans = [make("v5e:4x4", 16, 2.0), make("v5e:1x1", 1), make("h100:8", 8)]
    speed, memory = plan.make_panels(plans)
    curves = {line.label: (list(line.x), list(line.y)) for line in speed.lines}
    assert curves["v5e, by estimate"] == ([1, 16], pytest.approx([1000, 8000]))
    assert curves["h100, by estimate"] == ([8], pytest.approx([8000]))
    ideal = [list(line.y) for line in speed.lines if line.label == "ideal: 1,000 a device"]
    assert ideal == [pytest.approx([1000, 16000]), pytest.approx([8000])]
    assert [list(line.y) for line in memory.lines] == [[1.5, 1.5], [16, 16], [1.5], [16]]
    assert (memory.title, memory.x_ticks) == ("memory of a device (GiB)", [1, 8, 16])


def test_plot_of_devices_without_rates_is_that_of_memory():
    plans = [dataclasses.replace(make("here", 8), rates=None)]
    assert [panel.title for panel in plan.make_panels(plans)] == ["memory of a device (GiB)"]


def test_plot_is_drawn_into_a_file(capsys, tmp_path, monkeypatch):
    plans = [make("v5e:1x1", 1), make("v5e:4x4", 16)]
    monkeypatch.setattr(plan, "_make_plans", lambda *args, **kwargs: plans)
    path = tmp_path / "new/scaling.svg"
    _, err = succeed(capsys, *WORDS, "--topology=v5e:1x1,v5e:4x4", f"--plot={path}")
    assert f"drawn: {path}" in err
    text = path.read_text(encoding="utf-8")
    for shown in ("v5e, by estimate", "examples a second, which readers must deliver", "GiB"):
        assert shown in text
    # Devices are numbered, not their powers of ten.
    axes = make_figure(plan.make_panels(plans)).axes
    assert [[label.get_text() for label in axis.get_xticklabels()] for axis in axes] == [
        ["1", "16"],
        ["1", "16"],
    ]

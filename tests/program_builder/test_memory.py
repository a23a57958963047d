"""A step that does not fit into memory is refused before it is launched, with what would fit."""

import re

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _mesh, layers
from penstock._text_tables import scale_bytes


def program():
    x = layers.fc(layers.data("x", shape=[64]), size=512, act="relu")
    return layers.mean(layers.fc(x, size=512, act="relu"))


FEED = {"x": np.ones((8192, 64), np.float32)}


def refuse(monkeypatch, capacity, batch_size):
    monkeypatch.setattr(_mesh, "find_memory", lambda device: capacity)
    builder = ps.ProgramBuilder(program, optax.adam(1e-3))
    state = builder.init()
    with pytest.raises(MemoryError, match=r"got .* on each device") as caught:
        builder.train(state, {"x": FEED["x"][:batch_size]})
    with pytest.raises(MemoryError, match=r"got .* on each device"):
        builder.train(state, {"x": FEED["x"][:batch_size]})
    # Nothing was launched, which would have taken the state.
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    return str(caught.value)


def test_smaller_batch_that_is_advised_fits(monkeypatch):
    needed = ps.plan(ps.ProgramBuilder(program, optax.adam(1e-3)), batch_size=8192).total_bytes
    text = refuse(monkeypatch, int(0.9 * needed), 8192)
    size = int(re.search(r"a batch of (\d+) examples", text)[1])
    assert 0 < size < 8192
    parts = int(re.search(r"gradient_accumulation_steps=(\d+)", text)[1])
    for batch_size, options in (size, {}), (8192, {"gradient_accumulation_steps": parts}):
        builder = ps.ProgramBuilder(program, optax.adam(1e-3), **options)
        builder.train(builder.init(), {"x": FEED["x"][:batch_size]})


def test_state_that_does_not_fit_is_to_be_split(monkeypatch):
    text = refuse(monkeypatch, 4 * 2**20, 64)
    assert "a batch of" not in text
    assert 'state_sharding="full"' in text
    builder = ps.ProgramBuilder(program, optax.adam(1e-3), state_sharding="full")
    builder.train(builder.init(), {"x": FEED["x"][:64]})


def test_rematerialisation_is_advised_where_it_helps_with_the_least_that_it_takes(monkeypatch):
    needed = ps.plan(ps.ProgramBuilder(program, optax.adam(1e-3)), batch_size=8192).total_bytes
    # XLA's CPU backend computes nothing again.
    assert "layers.remat" not in refuse(monkeypatch, int(0.9 * needed), 8192)
    monkeypatch.setattr(_mesh, "is_on_cpu", lambda mesh: False)
    state = sum(3 * 4 * size for size in (64 * 512, 512, 512 * 512, 512)) + 4
    gradients, batch = 2 * (state - 4) // 3, FEED["x"].nbytes // jax.device_count()
    text = refuse(monkeypatch, int(0.9 * needed), 8192)
    least = re.search(r"layers\.remat around its blocks \(from (.*?) on\)", text)[1]
    assert least == scale_bytes(state + gradients + batch)
    assert "layers.remat" not in refuse(monkeypatch, state + gradients + batch - 4096, 8192)

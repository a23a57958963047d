"""Run a layer inside a real program and return what it gives and learns, as numpy arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers

Function = Callable[[], Any]
Feed = Mapping[str, Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def infer(function: Function, feed: Feed, variables: Any = None, num_devices: int = 1) -> Any:
    """Return what `function` returns in the infer program."""
    builder = ps.ProgramBuilder(infer_func=function, place=jax.devices()[:num_devices])
    return builder.infer(variables or builder.init(seed=0), feed)


def draw(builder: ps.ProgramBuilder, scale: float = 1.0) -> dict[str, Any]:
    """Return variables of a program drawn at random, and positive statistics; nothing compiles."""
    variables: dict[str, Any] = {"params": {}, "batch_stats": {}}
    for number, row in enumerate(builder.parameter_table()):
        *scopes, leaf = row.name.split("/")
        node = variables[row.collection]
        for scope in scopes:
            node = node.setdefault(scope, {})
        values = scale * normal(*row.shape, seed=number)
        node[leaf] = values if row.collection == "params" else 1 + values**2
    return variables


def check(
    function: Function, feed: Feed, expect: Callable[[Any], Any], atol: float = 1e-5, **options: Any
) -> None:
    """Check what a program gives with random parameters.

    Arguments:
      expect: takes the parameters, of one layer without its name, and returns what is expected.
      options: of the program.
    """
    builder = ps.ProgramBuilder(infer_func=function, place=jax.devices()[:1], **options)
    variables = draw(builder)
    own = variables["params"]
    own = next(iter(own.values())) if len(own) == 1 else own
    actual = builder.infer(variables, feed)
    for ours, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expect(own)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=atol)


class Case(NamedTuple):
    """A layer, and what it is compared with.

    Attributes:
      call: takes the inputs, and returns an array or several.
      expect: takes the parameters by name and the inputs, and returns the same.
      inputs: a few examples each, of all cases as many.
      rtol, atol: of the comparison; where both are 0 every bit counts.
    """

    call: Callable[..., Any]
    expect: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    rtol: float = 1e-5
    atol: float = 1e-5

    def check(self, actual: Any, expected: Any) -> None:
        for ours, wanted in zip(jax.tree.leaves(actual), expected, strict=True):
            np.testing.assert_allclose(ours, wanted, self.rtol, self.atol)


def run_all(cases: Mapping[str, Case]) -> dict[str, tuple[Any, Any]]:
    """Return what each case gives, in one program with random parameters, and what is expected."""
    feed = {f"{n} of {name}": x for name, c in cases.items() for n, x in enumerate(c.inputs)}

    def program() -> dict[str, Any]:
        outs = {}
        for name, case in cases.items():
            names = [f"{number} of {name}" for number in range(len(case.inputs))]
            fed = [layers.data(n, feed[n].shape[1:], feed[n].dtype.name) for n in names]
            outs[name] = layers.scope(name)(case.call)(*fed)
        return outs

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    variables = draw(builder)
    outs, made = builder.infer(variables, feed), {}
    for name, case in cases.items():
        expected = case.expect(variables["params"].get(name, {}), *case.inputs)
        several = isinstance(expected, (tuple, list))
        made[name] = outs[name], expected if several else [expected]
    return made


def assert_alike(actual: Any, expected: Any, **tolerances: float) -> None:
    """Raise unless two trees agree in every number."""
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerances), actual, expected)


def initial(function: Function, seed: int = 0) -> dict[str, Any]:
    """Return the initial variables of a program, as numpy arrays."""
    builder = ps.ProgramBuilder(infer_func=function, place=jax.devices()[:1])
    return jax.tree.map(np.asarray, builder.init(seed=seed).variables)


@dataclasses.dataclass(frozen=True)
class Step:
    """One training step: what the program returned, the gradients, the new statistics.

    `test_values` are what the test program returned before the step, if it was asked for.
    """

    values: Any
    gradients: dict[str, Any]
    batch_stats: dict[str, Any]
    test_values: Any


def train(
    function: Function,
    feed: Feed,
    *,
    variables: Any = None,
    num_devices: int = 1,
    is_tested: bool = False,
) -> Step:
    """Train one step on `feed`."""

    def trained() -> Any:
        layers.create_parameter([1], name="spare")  # a program to train has a parameter
        return function()

    builder = ps.ProgramBuilder(trained, optax.sgd(1.0), place=jax.devices()[:num_devices])
    state = builder.init(seed=0)
    if variables is not None:
        params = {**state.variables["params"], **variables["params"]}
        state = builder.adopt({**variables, "params": params}, state)
    before = jax.tree.map(np.asarray, state.variables)
    test_values = jax.tree.map(np.asarray, builder.test(state, feed)) if is_tested else None
    state, values = builder.train(state, feed)
    after = jax.tree.map(np.asarray, state.variables)
    gradients = jax.tree.map(np.subtract, before["params"], after["params"])
    del gradients["spare"]
    return Step(
        values=jax.tree.map(np.asarray, values),
        gradients=gradients,
        batch_stats=after.get("batch_stats", {}),
        test_values=test_values,
    )

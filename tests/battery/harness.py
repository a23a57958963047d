"""How a case of the battery is written, how penstock runs it, and how JAX alone does.

A case is a function of arrays (`body`), a flax module (`module`), or a whole program (`program`,
`objectives`). The first two run by `jax.jit` alone too, and are compared with that; the others are
compared with one device.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers

SIZES = (24, 19, 1)
"""Batch sizes: one that fills every place, one that leaves of eight devices one with a row of three
and one with none, and one example, for which a device has a single row or nothing."""

FULL_AND_UNEVEN, UNEVEN = SIZES[:2], SIZES[1:2]
"""What is tested too: both on eight devices; elsewhere that of which they have unlike parts."""

NUM_STEPS = 3

# Name, shape of an example, and dtype of what a function may take.
INPUTS = {
    "x": ((6,), "float32"),
    "y": ((1,), "float32"),
    "label": ((), "int32"),
    "image": ((6, 6, 2), "float32"),
    "tokens": ((7,), "int32"),
}

Values = list[np.ndarray]


def make_feed(size: int, seed: int) -> dict[str, np.ndarray]:
    """Return a batch of all inputs; the tokens are words 1 to 8 with zeros behind the last."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(size, 6)).astype(np.float32)
    lengths = random.integers(2, 8, (size, 1))
    words = random.integers(1, 9, (size, 7)).astype(np.int32)
    return {
        "x": x,
        "y": (x.sum(axis=1, keepdims=True) + random.normal(size=(size, 1))).astype(np.float32),
        "label": x[:, :4].argmax(axis=1).astype(np.int32),
        "image": random.normal(size=(size, 6, 6, 2)).astype(np.float32),
        "tokens": words * (np.arange(7)[None] < lengths),
    }


class Run(NamedTuple):
    """What a case gave for one batch size: values by step, variables after the steps, a test."""

    steps: list[Values]
    variables: dict[str, np.ndarray]
    test: list[Values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A program function and what it is compared with.

    Attributes:
      functions: by objective, the program function and the scope that it updates, if not all.
      inputs: of the feed.
      bare: `(variables, feed, is_training) -> (values, variables)`, the same without penstock.
      rtol: of the largest element; where it is not 1e-5, `reason` says why.
    """

    name: str
    functions: Mapping[str, tuple[Callable[[], object], str | None]]
    inputs: Sequence[str]
    bare: Callable[[Any, Any, bool], tuple[Any, Any]] | None = None
    sizes: Sequence[int] = SIZES
    rtol: float = 1e-5
    reason: str = ""
    rate: float = 0.05

    def feed(self, size: int, seed: int) -> dict[str, np.ndarray]:
        """Return a batch of this case's inputs."""
        made = make_feed(size, seed)
        return {name: made[name] for name in self.inputs}


CASES: dict[str, Case] = {}


def _register(function: Any, **fields: Any) -> None:
    name = f"{function.__module__.rpartition('.')[2]}-{function.__name__}"
    assert name not in CASES, name
    case = Case(name=name, **fields)
    assert (case.rtol == Case.rtol) == (not case.reason), f"{name}: a tolerance needs a reason"
    CASES[name] = case


def _make_arguments(names: Sequence[str]) -> dict[str, Any]:
    """Return, inside a program, what a function takes: inputs, a mean, a key or the mode."""
    special = {
        "mean": lambda: layers.mean,
        "key": layers.random_key,
        "train": layers.is_training,
    }
    return {
        name: special[name]() if name in special else layers.data(name, *INPUTS[name])
        for name in names
    }


def body(**fields: Any) -> Callable[[Any], Any]:
    """Register a function of arrays: inputs, `mean`, `key`, and parameters by shape.

    Arguments:
      fields: of the case; every other is the shape of a parameter.
    """
    shapes = {name: fields.pop(name) for name in list(fields) if name not in Case.__annotations__}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        names = [name for name in inspect.signature(function).parameters if name not in shapes]

        def program() -> Any:
            normal = jax.nn.initializers.normal(0.5)
            params = {
                name: layers.create_parameter(shape, name=name, default_initializer=normal)
                for name, shape in shapes.items()
            }
            return function(**_make_arguments(names), **params)

        def bare(variables: Any, feed: Any, is_training: bool) -> tuple[Any, Any]:
            inputs = {**feed, "mean": jnp.mean}
            return function(**{name: inputs[name] for name in names}, **variables["params"]), {}

        _register(
            function,
            functions={"train": (program, None)},
            inputs=[name for name in names if name in INPUTS],
            bare=None if "key" in names else bare,
            **fields,
        )
        return function

    return register


def module(*, has_keys: bool = False, **fields: Any) -> Callable[[Any], Any]:
    """Register a flax module whose call takes inputs and the mode, and returns the loss.

    Arguments:
      has_keys: it draws numbers, from keys that penstock makes.
    """

    def register(cls: Any) -> Any:
        parameters = list(inspect.signature(cls.__call__).parameters)[1:]

        def program() -> Any:
            return cls(name="net")(**_make_arguments(parameters))

        def bare(variables: Any, feed: Any, is_training: bool) -> tuple[Any, Any]:
            inputs = {**feed, "train": is_training}
            own = {name: tree["net"] for name, tree in variables.items() if "net" in tree}
            changed = ["batch_stats"] if is_training else []
            arguments = {name: inputs[name] for name in parameters}
            values, state = cls().apply(own, **arguments, mutable=changed)
            return values, {name: {"net": tree} for name, tree in state.items()}

        _register(
            cls,
            functions={"train": (program, None)},
            inputs=[name for name in parameters if name in INPUTS],
            bare=None if has_keys else bare,
            **fields,
        )
        return cls

    return register


def program(*inputs: str, **fields: Any) -> Callable[[Any], Any]:
    """Register a program function as it stands."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        _register(function, functions={"train": (function, None)}, inputs=inputs, **fields)
        return function

    return register


def objectives(*inputs: str, **fields: Any) -> Callable[[Any], Any]:
    """Register a function that returns program functions by the scope that each updates."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        functions = {scope: (objective, scope) for scope, objective in function().items()}
        _register(function, functions=functions, inputs=inputs, **fields)
        return function

    return register


def run(
    case: Case,
    devices: Sequence[jax.Device] | None,
    sizes: Sequence[int],
    test_sizes: Sequence[int] = FULL_AND_UNEVEN,
    share: Callable[[Any], Any] = lambda feed: feed,
) -> dict[int, Run]:
    """Train and test a case with penstock, for each batch size from the same initial state.

    Arguments:
      test_sizes: those of the sizes with which it is tested too.
      share: returns this process's part of a global batch.
    """
    with jax.numpy_rank_promotion("allow"):  # as people write
        builder, made = _make_builder(case, devices), {}
        for size in sizes:
            state, steps = builder.init(0), []
            for seed in range(NUM_STEPS):
                for name in case.functions:
                    state, values = builder.train(state, share(case.feed(size, seed)), name)
                    steps.append(_read(values))
            batch, names = share(case.feed(size, NUM_STEPS)), case.functions
            tested = [_read(builder.test(state, batch, n)) for n in names if size in test_sizes]
            made[size] = Run(steps, _flatten(state.variables), tested)
    return made


def find_losses(run: Run) -> list[float]:
    """Return the losses of a run's steps and of its test."""
    return [float(values[0]) for values in [*run.steps, *run.test]]


def _make_builder(case: Case, devices: Sequence[jax.Device] | None) -> ps.ProgramBuilder[Any]:
    optimizer = optax.sgd(case.rate)
    if None in [scope for _, scope in case.functions.values()]:
        # The name of the only one is that of a program function without a name.
        return ps.ProgramBuilder(case.functions["train"][0], optimizer, place=devices)
    several = {
        name: ps.Objective(function, optimizer, updates=scope)
        for name, (function, scope) in case.functions.items()
    }
    return ps.ProgramBuilder(several, place=devices)


def expect(name: str, size: int, test_sizes: Sequence[int]) -> Run:
    """Return what a case gives for a batch size, with which it is tested where that is said."""
    whole = reference(name)[size]
    return whole if size in test_sizes else whole._replace(test=[])


@functools.cache
def reference(name: str) -> dict[int, Run]:
    """Return what a case gives by `jax.jit` alone, or on one device where it cannot run so."""
    case = CASES[name]
    return run(case, jax.devices()[:1], case.sizes) if case.bare is None else run_bare(case)


def run_bare(case: Case) -> dict[int, Run]:
    """Train and test a case with JAX alone, from the initial state of a builder."""
    bare = case.bare
    assert bare is not None

    @jax.jit
    def step(variables: Any, feed: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, tuple[Any, Any]]:
            values, changed = bare({**variables, "params": params}, feed, True)
            return jax.tree.leaves(values)[0], (values, changed)

        result = jax.grad(loss, has_aux=True)(variables["params"])
        gradients, (values, changed) = result
        params = jax.tree.map(lambda p, g: p - case.rate * g, variables["params"], gradients)
        return {**variables, **changed, "params": params}, values

    @jax.jit
    def test(variables: Any, feed: Any) -> Any:
        return bare(variables, feed, False)[0]

    made, device = {}, jax.local_devices()[0]
    with jax.numpy_rank_promotion("allow"):
        initial = jax.device_get(_make_builder(case, [device]).init(0).variables)
        for size in case.sizes:
            variables, steps = initial, []
            for seed in range(NUM_STEPS):
                variables, values = step(variables, case.feed(size, seed))
                steps.append(_read(values))
            feed, is_tested = case.feed(size, NUM_STEPS), size in FULL_AND_UNEVEN
            tested = [_read(test(variables, feed))] if is_tested else []
            made[size] = Run(steps, _flatten(variables), tested)
    return made


def _read(values: Any) -> Values:
    leaves = jax.tree.leaves(values)
    if jax.process_count() > 1:  # rows are of each process its own
        leaves = [value.addressable_data(0) for value in leaves]
    # A program's scalars come as floats.
    return [np.asarray(value, np.float64) for value in leaves]


def _flatten(variables: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(variables))
    return {jax.tree_util.keystr(path): np.asarray(value) for path, value in leaves}


def assert_same(actual: Run, expected: Run, rtol: float, what: str = "") -> None:
    """Raise unless two runs agree, each array within `rtol` of its largest element."""
    pairs = zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True)
    for (path, left), right in pairs:
        finite = np.abs(right[np.isfinite(right)])
        scale = max(finite.max(initial=0), 0.1)  # what is 0 but for rounding has no scale
        np.testing.assert_allclose(
            left, right, rtol, rtol * scale, err_msg=f"{what} {jax.tree_util.keystr(path)}"
        )

"""Every distinct convolution of some networks on the CPU, and ways to compute it.

    python -m benchmarks convolutions
    python -m benchmarks convolutions --network resnet50 --batch_size 1 16 64
    python -m benchmarks convolutions --torch_python ~/torch/bin/python

For each, the milliseconds of the forward pass (y), and of the gradients of the kernel (dW) and of
the image (dX):

- default: XLA's convolution as JAX compiles it,
- own: without the library to which XLA delegates convolutions by default,
- taps, im2col, phases: sums of products, see `_convolution_forms`,
- first, padded: with the channels first, or with the image padded beforehand,
- torch: oneDNN's, in its own process.

`penstock` is what penstock's CPU programs run, `penstock.layers._convolution`. The decoder consists
of transposed convolutions, and ResNeXt-50 has groups: XLA takes seconds for the gradients of their
kernels. What takes half a second is run once; otherwise the minimum of a few alternating runs
counts. The last table sums over each network, with every convolution as often as it occurs, and
shows what the fastest of all forms would take.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import penstock as ps
from benchmarks import _timing
from benchmarks._convolution_forms import Convolution, forms
from benchmarks._networks import Network, OtherInterpreter, make_programs
from benchmarks.cpu_networks import plain_convolutions
from penstock import layers
from penstock.layers import _convolution
from penstock.program_builder import _compilation

SIZES = {
    "resnet50": 224,
    "inception_v3": 299,
    "mobilenet_v1": 224,
    "mobilenet_v2": 224,
    "mobilenet_v3_large": 224,
    "vgg_16": 128,
    "keras_nasnet_mobile": 224,
    "resnext50": 224,
    "decoder": 7,
    "conv_net": 28,
}
_LONG = 500.0  # ms
KINDS = ("y", "dW", "dX")
COLUMNS = ("penstock", "default", "own", "taps", "im2col", "phases", "first", "padded", "torch")


def gather(name: str, batch_size: int) -> collections.Counter[Convolution]:
    """Return the convolutions of a network's forward pass, and how often it has each."""
    program = _decode
    if name != "decoder":
        program, _ = make_programs(Network(name=name, size=SIZES[name]))
    with plain_convolutions():
        builder = ps.ProgramBuilder(program, place=jax.devices()[:1])
        traced = builder.inspect("test", batch_size=batch_size).traced
    return collections.Counter(map(Convolution.read, _find(traced.jaxpr.jaxpr)))


def _decode() -> Any:
    """Return the loss of what makes images of features, as generators and segmentation do."""
    y = layers.data("x", shape=[7, 7, 256])
    for num_filters, size in ((128, 4), (64, 4), (64, 2), (32, 3)):
        y = layers.conv2d_transpose(
            y, num_filters, output_size=2 * y.shape[1], filter_size=size, padding=size > 2, stride=2
        )
    return layers.mean(layers.reduce_mean(layers.conv2d_transpose(y, 3, filter_size=8, stride=4)))


def _find(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.primitive is lax.conv_general_dilated_p:
            yield equation
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    yield from _find(inner)


def derive(conv: Convolution) -> dict[str, Convolution]:
    """Return a convolution and those that its gradients are."""
    x, w, dy = (jax.ShapeDtypeStruct(each, np.float32) for each in (conv.lhs, conv.rhs, conv.out))

    def kernel_gradient(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(lambda w: conv.compute(x, w), w)[1](dy)

    def image_gradient(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(lambda x: conv.compute(x, w), x)[1](dy)

    found = {"y": conv}
    for kind, function in (("dW", kernel_gradient), ("dX", image_gradient)):
        # The forward pass is not read in the gradient, and comes first.
        *_, last = _find(jax.make_jaxpr(function)(x, w, dy).jaxpr)
        found[kind] = Convolution.read(last)
    return found


def _compile(function: Callable[..., Any], operands: Sequence[Any], *, is_own: bool) -> Any:
    options: Any = dict(_compilation._CONVOLUTION_OPTIONS) if is_own else {}
    return jax.jit(function, compiler_options=options).lower(*operands).compile()


def measure(conv: Convolution, kind: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each way to compute a convolution or a gradient of it."""
    rng = np.random.default_rng(0)

    def make(*shapes: tuple[int, ...]) -> list[jax.Array]:
        return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]

    derived, given = derive(conv)[kind], make(conv.lhs, conv.rhs, conv.out)
    operands = make(derived.lhs, derived.rhs)
    ways = {
        "default": _compile(derived.compute, operands, is_own=False),
        "own": _compile(derived.compute, operands, is_own=True),
    }
    for name, form in forms(derived).items():
        ways[name] = _compile(form, operands, is_own=True)
    runs = {name: functools.partial(way, *operands) for name, way in ways.items()}
    ours = functools.partial(_differentiate, functools.partial(_convolve, conv), kind)
    ours = _compile(ours, given, is_own=True)
    runs["penstock"] = functools.partial(ours, *given)
    expected = dict.fromkeys(ways, np.asarray(runs["default"]()))
    exact = jax.jit(functools.partial(_differentiate, conv.compute, kind))(*given)
    expected["penstock"] = np.asarray(exact)
    for name, exact in expected.items():
        error = np.abs(np.asarray(runs[name]()) - exact).max() / np.abs(exact).max()
        if error > 1e-4:
            raise AssertionError(f"{name} of {kind} of {conv} is off by {error:.1e}")
    least = dict.fromkeys(runs, np.inf)
    names = list(runs)
    for number in range(rounds):
        turn = number * len(names) // rounds
        for name in names[turn:] + names[:turn]:
            if number and least[name] > _LONG:
                continue
            start = time.perf_counter()
            jax.block_until_ready(runs[name]())
            least[name] = min(least[name], (time.perf_counter() - start) * 1e3)
    return {name: float(value) for name, value in least.items()}


def _convolve(conv: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """Return what penstock gives for one."""
    geometry = _convolution.Geometry(
        strides=conv.window_strides,
        spread=conv.lhs_dilation,
        dilations=conv.rhs_dilation,
        pads=conv.padding,
        groups=conv.feature_group_count,
    )
    return _convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=True)


def _differentiate(
    convolve: Callable[..., jax.Array], kind: str, x: jax.Array, w: jax.Array, dy: jax.Array
) -> jax.Array:
    """Return a convolution, or one of its gradients."""
    if kind == "y":
        return convolve(x, w)
    _, transpose = jax.vjp(convolve, x, w)
    return transpose(dy)[0 if kind == "dX" else 1]


def _measure_torch(torch: OtherInterpreter, conv: Convolution, kind: str, rounds: int) -> float:
    """Return the milliseconds of torch's."""
    asked = [conv.lhs, conv.rhs, conv.window_strides, conv.lhs_dilation, conv.padding]
    asked += [conv.rhs_dilation, conv.feature_group_count, kind, rounds]
    return torch.ask(json.dumps(asked))


def main(arguments: Sequence[str] = ()) -> None:
    """Print a row for each convolution, and the sums."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks convolutions")
    parser.add_argument("--network", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--batch_size", type=int, nargs="*", default=[16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch_python", default="", help="an interpreter that has torch")
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}, float32\n")
    python, script = flags.torch_python, "_torch_convolutions.py"
    torch = OtherInterpreter(python, script) if python else None
    known: dict[tuple[Convolution, str], dict[str, float]] = {}
    sums = []
    header = ["image", "kernel", "result", "what", *COLUMNS]
    print(_timing.table(header, []))
    for batch_size in flags.batch_size:
        for name in flags.network:
            totals = {kind: collections.defaultdict[str, float](float) for kind in KINDS}
            for conv, number in gather(name, batch_size).items():
                # Those of single channels have a way of their own, see `layers._convolution`.
                if conv.feature_group_count > 1 and conv.rhs[2] == 1:
                    continue
                for kind in KINDS:
                    found = known.get((conv, kind))
                    if found is None:
                        found = measure(conv, kind, flags.rounds)
                        if torch is not None:
                            found["torch"] = _measure_torch(torch, conv, kind, flags.rounds)
                        known[conv, kind] = found
                        _print_row(conv, kind, found)
                    ours = [value for way, value in found.items() if way != "torch"]
                    for way in ("penstock", "default", "own", "torch"):
                        totals[kind][way] += number * found.get(way, 0.0)
                    totals[kind]["fastest"] += number * min(ours)
            ways = ("penstock", "default", "own", "fastest", "torch")
            for kind in KINDS:
                figures = [f"{totals[kind][way]:.4g}" if totals[kind][way] else "-" for way in ways]
                sums.append([name, str(batch_size), kind, *figures])
    if torch is not None:
        torch.close()
    print("\nOf a whole network, milliseconds a step:\n")
    header = ["network", "batch", "what", "penstock", "default", "own", "fastest form", "torch"]
    print(_timing.table(header, sums))


def _print_row(conv: Convolution, kind: str, found: dict[str, float]) -> None:
    shapes = [" ".join(map(str, each)) for each in (conv.lhs, conv.rhs, conv.out)]
    figures = [f"{found[way]:.3g}" if way in found else "-" for way in COLUMNS]
    print("| " + " | ".join([*shapes, kind, *figures]) + " |", flush=True)


if __name__ == "__main__":
    main()

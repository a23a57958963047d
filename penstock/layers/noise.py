"""Randomness: noise, and keys to draw your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import dtypes
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_int, check_number
from penstock._program.frame import current_frame

Draw = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def random_key(name: str | None = None) -> jax.Array:
    """Return a `jax.random` key, for noise of any shape.

    The key depends on the seed, the step and the name. A resumed run draws the same numbers. In
    test and infer the key is the same at every call.

    Returns:
      A key, without axes.

    >>> def program():
    ...     x = layers.data("x", shape=[2])
    ...     return x + jax.random.normal(layers.random_key(), x.shape)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 2)
    """
    frame = current_frame("random_key")
    return frame.layer_key(frame.names.layer("random_key", name))


def example_keys(name: str | None = None) -> jax.Array:
    """Return a `jax.random` key for each example, to draw your own noise with `jax.vmap`.

    They are a split of one key, which depends on the seed, the step and the name. In test and infer
    the keys are the same for every batch.

    Returns:
      Keys, `[B]`.

    >>> def program():
    ...     x = layers.data("x", shape=[2])
    ...     return x * jax.vmap(lambda key: jax.random.gamma(key, 3.0, [2]))(layers.example_keys())
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 2)
    """
    frame = current_frame("example_keys")
    key = frame.layer_key(frame.names.layer("example_keys", name))
    return jax.random.split(key, frame.batch_size)


def gaussian_random(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Return normally distributed noise that all examples share.

    In training it differs from step to step. In test and infer it is the same at every call.
    Source: Fluid's `gaussian_random`.

    Arguments:
      shape: the shape, without a batch axis. `gaussian_random_batch_size_like` draws noise with
        one.
      mean: the mean of the distribution.
      std: its standard deviation.
      seed: 0 draws from the program's seed. Any other number is used as the seed itself, and the
        noise is then the same at every step.

    Returns:
      Noise of shape `shape`.

    >>> def program():
    ...     return layers.data("x", [2]) + layers.gaussian_random([1, 2], std=0.1)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 2)
    """
    draw = _make_normal(mean, std, dtype)
    sizes = _check_sizes("gaussian_random", shape)
    return _draw_noise("gaussian_random", draw, sizes, seed, name)


def uniform_random(
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Return noise, uniform in `[min, max)`, that all examples share.

    It is drawn like `gaussian_random`; see there. Source: Fluid's `uniform_random`.

    >>> def program():
    ...     return layers.data("x", [2]) + layers.uniform_random([1, 2])
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 2)
    """
    draw = _make_uniform("uniform_random", min, max, dtype)
    sizes = _check_sizes("uniform_random", shape)
    return _draw_noise("uniform_random", draw, sizes, seed, name)


def gaussian_random_batch_size_like(
    input: jax.Array,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Return independent, normally distributed noise for each example of `input`.

    It depends on the seed, the step, the layer's name and the shape. In training it differs from
    step to step. In test and infer every batch gets the same noise. Source: Fluid's
    `gaussian_random_batch_size_like`.

    Arguments:
      input: an array, usually `[B, ...]`.
      shape: the shape of the noise. The entry at `output_dim_idx`, usually -1, becomes the size of
        `input` at `input_dim_idx`.
      seed: as for `gaussian_random`.

    Returns:
      `shape`, usually with B at `output_dim_idx`.

    >>> def program():
    ...     x = layers.data("x", shape=[2])
    ...     return layers.gaussian_random_batch_size_like(x, shape=[-1, 3])
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 3)
    """
    layer = "gaussian_random_batch_size_like"
    draw = _make_normal(mean, std, dtype)
    sizes = _check_like(layer, shape, jnp.shape(input), input_dim_idx, output_dim_idx)
    return _draw_noise(layer, draw, sizes, seed, name)


def uniform_random_batch_size_like(
    input: jax.Array,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Return independent noise for each example of `input`, uniform in `[min, max)`.

    It is drawn like `gaussian_random_batch_size_like`; see there. Source: Fluid's
    `uniform_random_batch_size_like`.

    >>> def program():
    ...     x = layers.data("x", shape=[2])
    ...     return layers.uniform_random_batch_size_like(x, shape=[-1, 3])
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).shape
    (1, 3)
    """
    layer = "uniform_random_batch_size_like"
    draw = _make_uniform(layer, min, max, dtype)
    sizes = _check_like(layer, shape, jnp.shape(input), input_dim_idx, output_dim_idx)
    return _draw_noise(layer, draw, sizes, seed, name)


def _make_normal(mean: float, std: float, dtype: DTypeLike) -> Draw:
    dtype = dtypes.canonicalize_dtype(dtype)
    # A deviation of numpy's, or one that is computed, would widen half precision.
    return lambda key, shape: (mean + std * jax.random.normal(key, shape, dtype)).astype(dtype)


def _make_uniform(layer: str, low: float, high: float, dtype: DTypeLike) -> Draw:
    dtype = dtypes.canonicalize_dtype(dtype)
    if not low <= high:
        raise ProgramError(
            f"layers.{layer} got min={low!r} and max={high!r}, expected a min that is not above "
            "the max. Noise lies between the two. Exchange them."
        )
    return lambda key, shape: jax.random.uniform(key, shape, dtype, low, high)


def _draw_noise(
    layer: str, draw: Draw, sizes: tuple[int, ...], seed: int, name: str | None
) -> jax.Array:
    frame = current_frame(layer)
    path = frame.names.layer(layer, name)
    noise = draw(frame.layer_key(path, seed), sizes)
    # Numbers that are the same at every step would be taken for weights that nothing trains.
    return jax.lax.stop_gradient(noise) if seed else noise


def _check_sizes(layer: str, shape: Sequence[int]) -> tuple[int, ...]:
    why = f"Use layers.{layer}_batch_size_like for noise of each example's own."
    thing = f"layers.{layer} got shape {list(shape)} with a size of "
    return tuple(check_int(thing, size, 0, why, ProgramError) for size in shape)


def _check_like(
    layer: str,
    shape: Sequence[int],
    like: tuple[int, ...],
    input_dim_idx: int,
    output_dim_idx: int,
) -> tuple[int, ...]:
    for argument, index, ndim in (
        ("input_dim_idx", input_dim_idx, len(like)),
        ("output_dim_idx", output_dim_idx, len(shape)),
    ):
        why = "It is the axis where the batch stands."
        thing = f"layers.{layer} got {argument}="
        check_number(thing, index, f"[0, {ndim - 1}]", why, ProgramError)
    why = "Only the batch axis, at output_dim_idx, follows from the input."
    thing = f"layers.{layer} got shape {list(shape)} with a size of "
    batch = like[input_dim_idx]
    return tuple(
        batch if place == output_dim_idx else check_int(thing, size, 0, why, ProgramError)
        for place, size in enumerate(shape)
    )

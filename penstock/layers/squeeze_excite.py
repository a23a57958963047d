"""Squeeze and excite: channel weights computed from the mean of all channels."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from penstock._program.frame import current_frame
from penstock.layers import arguments
from penstock.layers.activations import Activation, activate
from penstock.layers.parameters import XAVIER, Attr, apply_shift, parameter


def squeeze_excite(
    input: jax.Array,
    num_squeezed: int,
    act: Activation | None = "relu",
    gate_act: Activation | Callable[[jax.Array], jax.Array] = "sigmoid",
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> jax.Array:
    """Multiply each channel by a gate computed from the means of all channels (Hu et al. 2018).

    Parameters: `squeeze/w` `[C, num_squeezed]` and `expand/w` `[num_squeezed, C]`, Xavier uniform,
    with biases `squeeze/b` and `expand/b`, zeros. The same in train, test and infer.

    Arguments:
      input: `[B, H, W, C]`.
      num_squeezed: the number of features between the two layers; a quarter of C is usual.
      act: name of the activation between the two layers.
      gate_act: name of the gate's activation, or a function.
      param_attr: for both weights.
      bias_attr: for both biases; `False` leaves them out.

    Returns:
      The input's shape.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     return layers.squeeze_excite(layers.data("image", [4, 4, 8]), num_squeezed=2)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> params["squeeze_excite_0"]["squeeze"]["w"].shape
    (8, 2)
    """
    layer = "squeeze_excite"
    frame = current_frame(layer)
    x = jnp.asarray(input)
    channels, _ = arguments.check_image(layer, x, "NHWC")
    path = frame.names.layer(layer, name)

    def affine(y: jax.Array, part: str, size: int) -> jax.Array:
        own = (*path, part)
        w = parameter(frame, own, "w", [y.shape[1], size], XAVIER, param_attr, layer=layer)
        y, w = frame.promote(y, w)
        return apply_shift(frame, y @ w, own, bias_attr, axis=-1, layer=layer, leaf="b")

    # `[B, C]`: others write the same sums as 1x1 convolutions.
    squeezed = activate(affine(jnp.mean(x, axis=(1, 2)), "squeeze", num_squeezed), act, layer)
    gate = affine(squeezed, "expand", channels)
    gate = gate_act(gate) if callable(gate_act) else activate(gate, gate_act, layer)
    return x * gate[:, None, None, :].astype(x.dtype)

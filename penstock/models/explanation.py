"""Where in an image a network looks for its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

from penstock.models._registry import EndPoints, Model

_Function = Callable[..., list[jax.Array]]


class Explanation(NamedTuple):
    """The predictions for a batch of images, and heat maps of where they come from.

    Arguments:
      logits: `[B, num_classes]`.
      heat: `[B, h, w]` in 0..1, with the height and width of the last feature map: 1 where the
        evidence for the most likely class is strongest, 0 where there is none.
    """

    logits: jax.Array
    heat: jax.Array


def grad_cam(model: Model, images: jax.Array, num_classes: int) -> Explanation:
    """Apply a network, and compute Grad-CAM heat maps of where its predictions come from.

    Call it in an infer program. The channels of the last feature map are weighted by the mean
    gradient of the most likely class's logit, and summed; negative values become 0. The last
    feature map is the last end point `[B, h, w, C]` that the logits depend on and that is larger
    than 1 x 1. Source: Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via
    Gradient-based Localization", 2017.

    Arguments:
      model: a network, from `models.get`.
      images: `[B, H, W, C]` float, preprocessed.
      num_classes: the number of classes.

    Raises:
      ValueError: the network has no such end point.

    >>> import numpy as np
    >>> import penstock as ps
    >>> from penstock import layers, models
    >>> def infer_program():
    ...     image = layers.data("image", shape=[28, 28, 1])
    ...     return models.grad_cam(models.get("lenet"), image, 10)
    >>> builder = ps.ProgramBuilder(infer_func=infer_program)
    >>> found = builder.infer(builder.init(), {"image": np.ones((2, 28, 28, 1))})
    >>> found.logits.shape, found.heat.shape
    ((2, 10), (2, 7, 7))
    """
    # Of a trace any value can be made an input: networks need not know that they are explained.
    closed, (_, shapes) = jax.make_jaxpr(
        lambda inputs: model(inputs, num_classes), return_shape=True
    )(images)
    # As a dict: jax sorts by key, and the places of the outputs follow from it.
    variables: tuple[object, EndPoints] = jax.tree.unflatten(
        jax.tree.structure((0, shapes)), closed.jaxpr.outvars
    )
    logits, points = variables
    assert isinstance(logits, Var)
    chosen = _find_last_feature_map(closed.jaxpr, logits, points, shapes)
    if chosen is None:
        raise ValueError(_say_what_is_missing(model, shapes))
    before, after = _cut(closed, *chosen, logits)
    feature_map, *values = before(*closed.consts, images)

    def find_best_logits(feature_map: jax.Array) -> tuple[jax.Array, jax.Array]:
        (best,) = after(feature_map, *values)
        return jnp.sum(jnp.max(best, axis=-1)), best

    # Images do not meet in an infer program: the gradient of the sum has that of each.
    gradient, best = jax.grad(find_best_logits, has_aux=True)(feature_map)
    gradient, feature_map = gradient.astype(jnp.float32), feature_map.astype(jnp.float32)
    weights = jnp.mean(gradient, axis=(1, 2), keepdims=True)
    heat = jax.nn.relu(jnp.sum(weights * feature_map, axis=-1))
    largest = jnp.max(heat, axis=(1, 2), keepdims=True)
    return Explanation(best, heat / jnp.where(largest > 0, largest, 1.0))


def _find_last_feature_map(
    jaxpr: Jaxpr,
    logits: Var,
    points: Mapping[str, object],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> tuple[Var, int] | None:
    """Return the last end point that the logits depend on, and the equation that makes it."""
    feature_maps = [
        variable
        for name, variable in points.items()
        if isinstance(variable, Var)
        and len(shapes[name].shape) == 4
        and shapes[name].shape[1] * shapes[name].shape[2] > 1
    ]
    # From the end to the beginning: an auxiliary head's feature maps are made late too.
    needed = {logits}
    for number, equation in reversed(list(enumerate(jaxpr.eqns))):
        made = needed.intersection(equation.outvars)
        if last := [variable for variable in feature_maps if variable in made]:
            return last[0], number
        if made:
            needed.update(_get_variables(equation.invars))
    return None


def _cut(
    closed: ClosedJaxpr, feature_map: Var, number: int, logits: Var
) -> tuple[_Function, _Function]:
    """Return a trace in two functions, cut behind the feature map.

    The first returns the feature map and what else the second needs, which returns the logits.
    """
    jaxpr = closed.jaxpr
    equations = jaxpr.eqns[number + 1 :]
    made = {variable for equation in equations for variable in equation.outvars}
    used = [variable for equation in equations for variable in _get_variables(equation.invars)]
    passed = [v for v in dict.fromkeys([feature_map, *used]) if v not in made]
    before = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        eqns=jaxpr.eqns[: number + 1],
        outvars=passed,
    )
    after = jaxpr.replace(constvars=[], invars=passed, eqns=equations, outvars=[logits])
    return jaxpr_as_fun(ClosedJaxpr(before, [])), jaxpr_as_fun(ClosedJaxpr(after, []))


def _get_variables(atoms: Sequence[Var | Literal]) -> list[Var]:
    return [atom for atom in atoms if isinstance(atom, Var)]


def _say_what_is_missing(model: Model, points: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    shapes = ", ".join(f"{name} {list(point.shape[1:])}" for name, point in points.items())
    return (
        f"Grad-CAM of {model.name!r} got {f'the end points {shapes}' if shapes else 'no end point'}"
        ", expected one [height, width, channels] of more than one place on the way to the logits. "
        "It shows which places of the last feature map speak for a class. Let the network return "
        "its feature maps as end points, or take larger images."
    )

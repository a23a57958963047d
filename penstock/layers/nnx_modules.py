"""The bridge to flax.nnx: its modules as layers.

`nnx.bridge.ToLinen` takes a class and draws new weights; users have a module with weights. It also
makes the module again in every trace, leaves train and eval mode to the caller, and cannot share
variables between two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock._program.frame import current_frame

P = ParamSpec("P")
R = TypeVar("R")


def nnx_module(module: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Use a flax.nnx module, or one of its methods, as a layer.

    Every `nnx.Param` becomes a parameter and every `nnx.BatchStat` a running statistic of the
    program. Their initial values are those of the module, whatever the seed. The module itself
    does not change: the program calls a copy. Modules that share a variable share it here too,
    whatever their names.

    The train program calls `train()` on the copy, the test and infer programs call `eval()`. Where
    its statistics are frozen, `nnx.BatchNorm` uses them in training too.

    Arguments:
      module: an `nnx.Module`, or a bound method such as `model.encode`.
      name: the scope at the start of the weights' paths; by default `nnx_module_0` and so on.

    Returns:
      A function with the module's arguments and results.

    Raises:
      ProgramError: `module` is not an nnx module or a method of one. Or, when the function is
        called: the module changes variables other than its running statistics.

    >>> from flax import nnx
    >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> def program():
    ...     return layers.nnx_module(model, name="linear")(layers.data("x", [2]))
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> sorted(params["linear"]), params["linear"]["kernel"].shape
    (['bias', 'kernel'], (2, 3))
    """
    from penstock.layers import _nnx  # flax.nnx takes half a second to import

    frame = current_frame("nnx_module")
    path = frame.names.layer("nnx_module", name)
    return _nnx.bind(frame, path, module)

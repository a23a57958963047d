"""The bridge to flax.nnx: its modules as layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock._program.frame import current_frame

P = ParamSpec("P")
R = TypeVar("R")


def nnx_module(module: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Return a flax.nnx module, or a method of one, with its weights in the program's tree.

    Every `nnx.Param` becomes a parameter and every `nnx.BatchStat` a running statistic, which start
    from the module's own values, whatever the seed. The module itself stays as it is: the program
    calls a copy. Modules that share a variable share it here too, whatever they are called.

    In the train program the copy is set to train as by `module.train()`, in test and infer to
    evaluate as by `module.eval()`. `nnx.Dropout` draws as `layers.dropout` does, by the examples'
    places in the global batch. `nnx.BatchNorm` normalises by the valid examples of the global
    batch, as `layers.batch_norm(sync=True)` does; where its statistics are frozen, by those.

    Arguments:
      module: an `nnx.Module`, or a bound method such as `model.encode`.
      name: of the scope that the weights' paths begin with, `nnx_module_0` and so on without.

    Returns:
      A function with the module's arguments and results.

    Raises:
      ProgramError: it is no such module. When it is called: it keeps more from call to call than
        parameters and running statistics.

    >>> from flax import nnx
    >>> import penstock as ps
    >>> from penstock import layers
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

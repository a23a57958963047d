"""What flax modules sow: values that they leave beside what they return."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from flax import linen as nn

from penstock._program.frame import current_frame

T = TypeVar("T")


@dataclasses.dataclass
class Sown:
    """What one run of a program function sows.

    Attributes:
      collections: the names it asks for, those of the probe from the beginning.
      module: the program's outermost module, while it runs.
    """

    collections: set[str]
    module: nn.Module | None = None

    def run(self, module: nn.Module, function: Callable[[], T]) -> T:
        """Call a module with a function, knowing where its submodules sow."""
        self.module = module
        return module(function)


_CURRENT: ContextVar[Sown | None] = ContextVar("sown", default=None)


@contextlib.contextmanager
def gather(collections: Iterable[str]) -> Iterator[Sown]:
    """Let `sown` find what is sown inside the `with` block."""
    gathered = Sown(set(collections))
    token = _CURRENT.set(gathered)
    try:
        yield gathered
    finally:
        _CURRENT.reset(token)


def sown(collection: str = "intermediates") -> dict[str, Any]:
    """Return what flax modules have sown so far in this run, nested by module, in tuples.

    For auxiliary losses and for values to look at. What is sown and not asked for is an error, for
    it would be lost. Nothing stays for the next step.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> class Doubled(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         self.sow("intermediates", "before", x)
    ...         return 2 * x
    >>> def program():
    ...     y = Doubled(name="doubled")(layers.data("x", shape=[1]))
    ...     return {"y": y, "before": layers.sown()["doubled"]["before"][0]}
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[3.0]]})["before"].tolist()
    [[3.0]]
    """
    current_frame("sown")
    gathered = _CURRENT.get()
    assert gathered is not None
    assert gathered.module is not None
    gathered.collections.add(collection)
    # A copy: the module goes on adding to its own.
    return jax.tree.map(lambda x: x, dict(gathered.module.variables.get(collection, {})))

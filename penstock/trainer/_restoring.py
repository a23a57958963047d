"""Reading checkpoints: the same one on every process, into a state that may be donated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from penstock._checkpoint import Contents, Store, check_fits
from penstock._errors import CheckpointError
from penstock.trainer._agreement import is_any, take_from_first

if TYPE_CHECKING:
    from penstock.program_builder.engine import Engine

_NONE, _FAILED = -1, -2


def read_newest(store: Store, *, before: int | None = None) -> Contents | None:
    """Return the newest checkpoint that can be read, None where there is none. Collective.

    Only the first process writes and deletes, so only it knows what is there to stay: it looks, and
    the others read what it has found. This run may not be writing.

    Arguments:
      before: a global step; only checkpoints up to it count.

    Raises:
      CheckpointError: there are checkpoints, and none can be read; or a process cannot read the one
        that the first has read. Then it is raised on all of them.
    """
    contents, error, step = None, None, _NONE
    if not jax.process_index():
        try:
            contents = store.read_newest(before=before)
            step = contents.position.global_step if contents is not None else _NONE
        except Exception as raised:  # kept until the others know of it: they wait for the step
            error, step = raised, _FAILED
    # The step alone travels: the files are on a disk that all of them see.
    step = take_from_first(step)
    if jax.process_index() and step >= 0:
        try:
            contents = store.read(step)
        except CheckpointError as raised:
            error = raised
    if not is_any(error is not None):
        return contents
    raise error or CheckpointError(
        f"{store.directory} got a checkpoint that another process cannot read, expected one that "
        "all of them can. They must restore the same one. Its log says what is wrong; see that "
        "every process sees the same folder."
    )


def restore(engine: Engine, contents: Contents, where: str) -> None:
    """Take the state of a checkpoint.

    Raises:
      CheckpointError: it is of another network.
    """
    names = engine.programs.states.leaf_names
    abstract = jax.tree.leaves(engine.programs.states.abstract_state)
    # Before anything is put on devices: a refusal leaves the engine as it was.
    check_fits(contents, names, abstract, where)
    engine.restore(contents.leaves)

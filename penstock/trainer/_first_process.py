"""What the first of several processes decides for all: a folder taken, a checkpoint read."""

from __future__ import annotations

from collections.abc import Callable

from penstock._checkpoint import Contents, Store
from penstock._errors import CheckpointError
from penstock.distributed.group import Group


def run_on_first(group: Group, do: Callable[[], None], what: str) -> None:
    """Call a function on the first process. Collective.

    Raises: what it raises there; on the others a `CheckpointError` that says so.
    """
    error = None
    if not group.index:
        try:
            do()
        except Exception as raised:  # kept until the others know of it
            error = raised
    # All of them raise, or none: one that went on alone would wait in the next launch.
    text = error and f"{type(error).__name__}: {error}"
    if said := group.broadcast(f"the attempt to {what}", text):
        group.leave(0)
        raise error or CheckpointError(
            f"process 0 could not {what}, which it does for all, expected it to: {said}"
        )


def read_newest(group: Group, store: Store, *, before: int | None = None) -> Contents | None:
    """Return the newest checkpoint that can be read, None where there is none. Collective.

    Only the first process writes and deletes, so only it knows what is there to stay: it looks, and
    the others read what it has found. This run may not be writing.

    Arguments:
      before: a global step; only checkpoints up to it count.

    Raises:
      CheckpointError: there are checkpoints, and none can be read; or a process cannot read the one
        that the first has read. Then it is raised on all of them.
    """
    contents, error = None, None
    if not group.index:
        try:
            contents = store.read_newest(before=before)
        except Exception as raised:  # kept until the others know of it: they wait for the step
            error = raised
    # The step alone travels: the files are on a disk that all of them see.
    name = "the search for the newest checkpoint"
    step = group.broadcast(name, contents and contents.position.global_step)
    if group.index and step is not None:
        try:
            contents = store.read(step)
        except CheckpointError as raised:
            error = raised
    said = group.exchange("reading the newest checkpoint", error and str(error))
    if not any(said):
        return contents
    index = next(number for number, each in enumerate(said) if each)
    group.leave(index)
    raise error or CheckpointError(
        f"{store.directory} got a checkpoint that process {index} cannot read, expected one that "
        f"all of them can. They must restore the same one. See that every process sees the same "
        f"folder. It says: {said[index]}"
    )

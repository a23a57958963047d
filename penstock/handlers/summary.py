"""`Summary`: the table of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from penstock._text_tables import align_rows, scale_bytes
from penstock.events import BeginTraining, Event
from penstock.handlers._arguments import check_file
from penstock.handlers._display import choose_output
from penstock.handlers._monitor import get_trainer

_HEAD = ("name", "shape", "count", "dtype", "trainable")


class Summary:
    """Print the table of parameters and running statistics when training begins.

    Each row has the name, shape, number of elements, dtype, and whether it is trainable: `no` for
    frozen parameters and for running statistics. Below are the totals, with bytes, as in Keras's
    `model.summary()`. Optimizer state is not included. `trainer.builder.inspect` tells what a step
    costs.

    Arguments:
      file: an open text file; standard output by default.

    >>> import optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean(prediction * prediction)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu")
    >>> Summary()(BeginTraining(epoch=0, num_epochs=1, global_step=0, trainer=trainer))
    name    shape   count  dtype    trainable
    -----------------------------------------
    fc_0/w  [2, 1]      2  float32  yes
    fc_0/b  [1]         1  float32  yes
    -----------------------------------------
    trainable      3  12 B
    non-trainable  0  0 B
    total          3  12 B
    """

    def __init__(self, *, file: TextIO | None = None) -> None:
        check_file("Summary", file)
        self._file = file

    def __call__(self, event: Event) -> None:
        """Print the table at `BeginTraining`."""
        if isinstance(event, BeginTraining):
            lines = _table(get_trainer(event, "Summary").builder.parameter_table())
            print("\n".join(lines), file=choose_output(self._file), flush=True)


def _table(rows: Sequence[Any]) -> list[str]:
    from jax.numpy import dtype  # jax is loaded by now; it knows bfloat16

    cells = [
        (r.name, str(list(r.shape)), f"{r.size:,}", r.dtype, "yes" if r.is_trainable else "no")
        for r in rows
    ]
    lines = align_rows([_HEAD, *cells], right=[2])
    rule = "-" * max(map(len, lines))
    totals = []
    kinds = {"trainable": [True], "non-trainable": [False], "total": [True, False]}
    for name, kind in kinds.items():
        parts = [row for row in rows if row.is_trainable in kind]
        num_bytes = sum(row.size * dtype(row.dtype).itemsize for row in parts)
        totals.append((name, f"{sum(row.size for row in parts):,}", scale_bytes(num_bytes)))
    return [lines[0], rule, *lines[1:], rule, *align_rows(totals, right=[1])]

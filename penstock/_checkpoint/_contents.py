"""What a checkpoint holds: leaves by name, checked by CRC-32C, and a description in JSON.

No bit may be flipped unseen: every array has a checksum in the description, and the description one
of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock._errors import CheckpointError, check_number

FORMAT = 2
"""From 2 on arrays may be in pieces, which several processes have written."""

JSONObject = Mapping[str, Any]
"""What JSON holds by name."""


Leaf = np.ndarray | jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """Where a training run is after a launch, or at the end of an epoch.

    Attributes:
      global_step: steps done, over all calls of `train`.
      epoch: the epoch that runs, or that runs next.
      step: steps done of that epoch; 0 between epochs.
      num_examples: examples of those steps.
      call: which call of `train` it is, from 0.
      first_epoch: the epoch in which that call began.
      reader_state: what the reader's iterator returned from `get_state`, one for each process, or
        how many batches it had yielded; between epochs that of the epoch before.
    """

    global_step: int = 0
    epoch: int = 0
    step: int = 0
    num_examples: int = 0
    # A script that is resumed in its second `train` passes over the first, whose epochs were done.
    call: int = 0
    first_epoch: int = 0
    reader_state: list[object] | None = None


class Piece(NamedTuple):
    """A block of an array that is split over devices; `begin` is where in it, by axis."""

    leaf: str
    shape: Sequence[int]
    begin: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """One checkpoint on the host: the state's leaves by name, the position and the trainer's notes.

    Attributes:
      leaves: arrays by name, such as `variables.params.fc_0.w`, and pieces of such.
      position: where training was.
      extra: what the trainer keeps beside it: versions, the parameter table, handlers' states.
      metric: the value by which the best are kept, where there is one.
      pieces: which of the arrays are pieces, by name.
      part, num_parts: which part of the checkpoint it is, and of how many: of each process one.
      attempt: what all parts of one save have in common, where there are several.
    """

    leaves: Mapping[str, np.ndarray]
    position: Position
    extra: JSONObject = dataclasses.field(default_factory=dict)
    metric: float | None = None
    pieces: Mapping[str, Piece] = dataclasses.field(default_factory=dict)
    part: int = 0
    num_parts: int = 1
    attempt: str = ""

    def description(self) -> dict[str, str | int]:
        """Return everything but the arrays, for JSON, with a checksum of each and of itself."""
        body = json.dumps(
            {
                "format": FORMAT if self.pieces else 1,
                "position": dataclasses.asdict(self.position),
                "extra": dict(self.extra),
                "metric": self.metric,
                "leaves": {
                    name: {"shape": list(x.shape), "dtype": str(x.dtype), "crc32c": checksum(x)}
                    for name, x in self.leaves.items()
                },
                "pieces": self.pieces,
                "num_parts": self.num_parts,
                "attempt": self.attempt,
            }
        )
        # As text: a checksum is of bytes, and JSON may be written in many ways.
        return {"body": body, "crc32c": checksum(np.frombuffer(body.encode(), np.uint8))}


def fetch_leaves(
    names: Sequence[str], leaves: Sequence[jax.Array], part: int
) -> tuple[dict[str, np.ndarray], dict[str, Piece]]:
    """Return arrays on the host by name, and which of them are pieces; waits for the device.

    Of what several processes hold in common, the first writes all.
    """
    wanted: dict[str, jax.Array] = {}
    pieces: dict[str, Piece] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            if not part:
                wanted[name] = leaf
            continue
        for shard in leaf.addressable_shards:
            begin = [axis.start or 0 for axis in shard.index]
            if not shard.replica_id:
                own = f"{name}@{'_'.join(map(str, begin))}"
                wanted[own], pieces[own] = shard.data, Piece(name, leaf.shape, begin)
    # As a list: JAX would sort a dict.
    arrays = map(np.asarray, jax.device_get(list(wanted.values())))
    return dict(zip(wanted, arrays, strict=True)), pieces


def checksum(array: np.ndarray) -> int:
    """Return the CRC-32C of an array's bytes; a contiguous array is not copied."""
    from penstock._checksums import crc32c

    return crc32c(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def parse(description: JSONObject, where: str) -> dict[str, Any]:
    """Return the fields of a description, its checksum verified."""
    # Checked before it is parsed: damaged JSON may parse.
    body = description["body"]
    if checksum(np.frombuffer(body.encode(), np.uint8)) != description["crc32c"]:
        raise CheckpointError(f"{where}: its description was changed after it was written")
    return json.loads(body)


def read(description: JSONObject, leaves: Mapping[str, np.ndarray], where: str) -> Contents:
    """Return the contents that a description and arrays make, every checksum verified."""
    try:
        fields = parse(description, where)
        # Older ones can be read: fields that came later have defaults.
        why = "A newer penstock wrote it."
        begin = f"{where}: got format "
        check_number(begin, fields["format"], f"[0, {FORMAT}]", why, CheckpointError)
        # A field of another version raises TypeError, which is caught below.
        # Until 0.1 there were sizes that batches were padded to.
        position = Position(**{k: v for k, v in fields["position"].items() if k != "batch_sizes"})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{where}: its description is no JSON of ours ({error})") from error
    arrays = {}
    for name, entry in fields["leaves"].items():
        value = leaves.get(name)
        if value is None:
            raise CheckpointError(f"{where}: the array {name!r} is missing")
        arrays[name] = np.asarray(value)
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        # The shape too: bytes say nothing of it.
        if (arrays[name].shape, str(arrays[name].dtype)) != (shape, dtype) or (
            checksum(arrays[name]) != entry["crc32c"]
        ):
            raise CheckpointError(f"{where}: the array {name!r} was changed after it was written")
    return Contents(
        leaves=arrays,
        position=position,
        extra=fields["extra"],
        metric=fields.get("metric"),
        pieces={name: Piece(*piece) for name, piece in fields.get("pieces", {}).items()},
        num_parts=fields.get("num_parts", 1),
        attempt=fields.get("attempt", ""),
    )


def check_fits(
    contents: Contents, names: Sequence[str], leaves: Sequence[Leaf], where: str
) -> None:
    """Raise, with every difference, unless a checkpoint holds the leaves of a program's state."""
    table = dict(zip(names, leaves, strict=True))
    missing = table.keys() - contents.leaves
    lines = [f"  missing: {name} {_format_leaf(table[name])}" for name in missing]
    for name, value in contents.leaves.items():
        got = _format_leaf(value)
        expected = _format_leaf(table[name]) if name in table else None
        if expected is None:
            lines.append(f"  extra: {name} {got}")
        elif got != expected:
            lines.append(f"  mismatched: {name} got {got}, expected {expected}")
    if lines:
        raise CheckpointError(
            f"the checkpoint {where} is of another network or optimizer:\n"
            + "\n".join(sorted(lines))
            + "\nGive this run a directory of its own; to start from those parameters, pass "
            "param_path=... of a folder that save_params wrote."
        )


def _format_leaf(leaf: Leaf) -> str:
    return f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"

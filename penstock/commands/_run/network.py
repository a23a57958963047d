"""Networks of the model library: their programs, and the weights that they have or start from."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from penstock import Precision, ProgramBuilder, Trainer, _parameters, layers, models, preprocessing
from penstock._errors import ParameterError
from penstock._mesh import Place
from penstock._parameter_names import Selection, spell
from penstock._parameters import DATA_FILE, read_parameters
from penstock._text_tables import escape
from penstock.commands._argument_parser import FlagValue
from penstock.commands._failures import UsageError, split_words
from penstock.commands._flags import ModelFlags, PerformanceFlags, TrainFlags, make_train_flags
from penstock.commands._run.processes import is_writing_process
from penstock.commands._run_folder.folder import RunFolder, find_run_folder, find_weights
from penstock.commands._run_folder.runs import find_run_path
from penstock.models.classification import AUXILIARY_WEIGHT
from penstock.models.weights import build_forward
from penstock.readers.image_files import SUFFIXES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network is made for.

    Arguments:
      image_shape: `[H, W, C]` of its images.
      preprocessing: its device part runs in the programs; None for none.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    preprocessing: preprocessing.Preprocessing | None


def make_network(
    flags: TrainFlags, shape: Shape, *, counts_auxiliary: bool = True
) -> models.Classifier:
    """Return the programs of the network that flags name.

    Arguments:
      counts_auxiliary: an auxiliary head adds to the loss; not where it has no weights.
    """
    # A decay that is named, or FastNN's, holds from the first step: nothing warms up.
    is_fixed = flags.fastnn_compat or flags.model.batch_norm_decay is not None
    settings = models.Settings(
        weight_decay=0.0 if flags.fastnn_compat else flags.model.weight_decay,
        # FastNN never runs the updates of the running statistics.
        batch_norm_decay=1.0 if flags.fastnn_compat else flags.model.batch_norm_decay,
        batch_norm_warmup=False if is_fixed else None,
        # FastNN's statistics are those of a device's share.
        batch_norm_group_size=flags.model.batch_norm_group_size
        or (flags.model.batch_size if flags.fastnn_compat else None),
    )
    model = models.get(flags.model.model_name, settings)
    height, _, channels = shape.image_shape
    model = dataclasses.replace(model, num_channels=channels)
    seen: list[jax.Array] = []
    is_mnist_of_fastnn = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    if is_mnist_of_fastnn:
        model = dataclasses.replace(model, function=_keep_logits(model, seen))
    made = models.classifier(
        model,
        shape.num_classes,
        image_size=height,
        label_smoothing=flags.model.label_smoothing,
        auxiliary_weight=AUXILIARY_WEIGHT if counts_auxiliary else 0.0,
        preprocess=None if shape.preprocessing is None else shape.preprocessing.device,
    )
    if is_mnist_of_fastnn:
        return made._replace(train_program=_add_broadcast_accuracy(made.train_program, seen))
    return made


@contextlib.contextmanager
def name_smallest_size(model: models.Model, size: int) -> Iterator[None]:
    """Name the smallest images that a network takes where it is built for smaller ones.

    Arguments:
      size: height and width in pixels, of the network that is built inside.

    Raises:
      ValueError: nothing is left of images of that size on the way through the network.
    """
    try:
        yield
    except ValueError as error:
        smallest = _smallest_size(model, size)
        if smallest == size:
            raise
        raise ValueError(
            f"--train_image_size got {size}, expected {smallest} or more. With smaller "
            f"images, {model.name!r} has nothing left before its last layer. Leave the flag out "
            f"for {model.default_image_size}, the network's own."
        ) from error


def _smallest_size(model: models.Model, size: int) -> int:
    """Return the smallest image size from `size` on that a network takes, else `size`."""
    if _accepts(model, size):
        return size
    # Building for a size that is too small ends early, at the layer that refuses it. One that fits
    # takes seconds for the largest networks. So the search begins with the small sizes.
    least, step = size, 1
    while not _accepts(model, least + step):
        least, step = least + step, 2 * step
        # Its size is not the reason: the network's own images would be refused too.
        if least > model.default_image_size:
            return size
    sizes = range(least + 1, least + step + 1)
    return sizes[bisect.bisect_left(sizes, True, key=lambda each: _accepts(model, each))]


def _accepts(model: models.Model, size: int) -> bool:
    try:
        build_forward(model, 2, size)
    except ValueError:
        return False
    return True


def make_precision(flags: PerformanceFlags) -> Precision:
    """Return the precision that the flags ask for; only float16 has a loss scale."""
    name = flags.precision_name
    return Precision(name, flags.loss_scale if name == "float16" else None)


def find_last_layers(flags: TrainFlags, shape: Shape, trainer: Trainer) -> set[str]:
    """Return the names of the parameters whose shape depends on the number of classes."""
    # Found by building for one class more, not by names, which differ from network to network.
    wider = dataclasses.replace(shape, num_classes=shape.num_classes + 1)
    builder = ProgramBuilder(make_network(flags, wider).train_program)
    shapes = {row.name: row.shape for row in builder.parameter_table()}
    rows = trainer.builder.parameter_table()
    return {row.name for row in rows if shapes.get(row.name) != row.shape}


def _keep_logits(
    model: models.Model, seen: list[jax.Array]
) -> Callable[..., tuple[jax.Array, models.EndPoints]]:
    """Return the network's function, which also puts its logits into a list."""

    def function(
        images: jax.Array, num_classes: int | None, *, settings: models.Settings
    ) -> tuple[jax.Array, models.EndPoints]:
        logits, points = dataclasses.replace(model, settings=settings)(images, num_classes)
        # Past the classifier, whose metrics have no logits. Emptied in the same trace, as tracers
        # must be.
        seen[:] = [logits]
        return logits, points

    return function


def _add_broadcast_accuracy(
    train_program: Callable[[], dict[str, jax.Array]], seen: list[jax.Array]
) -> Callable[[], dict[str, jax.Array]]:
    """Return the program with the accuracy that FastNN logs for mnist.

    Its labels have a shape of `[B, 1]`, so that each prediction is compared with each label: what
    is logged is the sum over classes of the share predicted times the share labelled.
    """

    def program() -> dict[str, jax.Array]:
        metrics = train_program()
        logits = seen.pop()
        label = layers.data("label", shape=[1], dtype="int32")
        predicted = jnp.argmax(logits, axis=-1)[:, None]
        shares = [
            layers.mean((predicted == number).astype(jnp.float32))
            * layers.mean((label == number).astype(jnp.float32))
            for number in range(logits.shape[-1])
        ]
        return metrics | {"accuracy": jnp.sum(jnp.stack(shares))}

    return program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of a network, by the names of its parameters.

    Arguments:
      path: where they lie.
      optional: parameters of auxiliary heads that a file of others lacks, or lacked when it was
        imported: a network can do without them.
      notes: sentences about them.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    optional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_weights(path: Path, model: models.Model, image_size: int) -> Weights:
    """Read the weights in a folder of ours, or in a file of others.

    Raises:
      ParameterError: they are of another network.
    """
    if path.is_dir():
        arrays = {spell(keys): value for (_, keys), value in read_parameters(path).items()}
        optional = tuple(_parameters.read_about(path).get("left_initial", ()))
        arrays = {name: np.asarray(value) for name, value in arrays.items()}
        return Weights(path=path, arrays=arrays, optional=optional)
    found = models.load_weights(model, os.fspath(path), image_size=image_size)
    note = f"{found.num_classes} classes, names of {found.source}"
    return Weights(
        path=path,
        arrays=found.entries,
        optional=found.left_initial,
        notes=(note, *found.notes),
    )


def load_weights(
    trainer: Trainer,
    weights: Weights,
    flags: ModelFlags,
    *,
    model: models.Model,
    find_last_layers: Callable[[], set[str]],
) -> tuple[list[str], str | None]:
    """Put weights into a trainer's network.

    Last layers for another number of classes are left initial.

    Arguments:
      find_last_layers: returns the parameters whose shape depends on the number of classes.

    Returns:
      Sentences about what was loaded; and the last layers that were left initial, or None.

    Raises:
      ParameterError: the weights are of another network.
      UnknownNameError: a pattern matches nothing.
    """
    arrays = weights.arrays
    selection = Selection(
        include=split_words(flags.checkpoint_include_scopes) or None,
        exclude=split_words(flags.checkpoint_exclude_scopes) or None,
    )
    selection.check(trainer.builder.programs.network.table)
    shapes = {row.name: tuple(row.shape) for row in trainer.builder.parameter_table()}
    wanted = [name for name in shapes if selection.takes(name)]
    there = [name for name in wanted if name in arrays]
    misfits = [name for name in there if arrays[name].shape != shapes[name]]
    # Asked only where something does not fit: it builds the network once more.
    dropped = sorted(set(misfits) & find_last_layers()) if misfits else []
    problems = [
        f"{name} has {list(arrays[name].shape)} there and {list(shapes[name])} here"
        for name in misfits
        if name not in dropped
    ]
    if not flags.ignore_missing_vars:
        needed = [name for name in wanted if name not in weights.optional]
        problems += [f"{name} is not there" for name in needed if name not in arrays]
    if problems or not there:
        raise ParameterError(
            f"{str(weights.path)!r} got weights that do not fit {model.name}: "
            f"{'; '.join(problems)}. Are they for another network? --checkpoint_exclude_scopes "
            "leaves parts out."
        )
    loaded = {name: arrays[name] for name in there if name not in misfits}
    trainer.parameters.update(loaded)
    lines = [f"{len(loaded)} of {len(shapes)} arrays from {weights.path}", *weights.notes]
    misfit = None
    if dropped:
        numbers = arrays[dropped[0]].shape[-1], shapes[dropped[0]][-1]
        misfit = f"({numbers[0]} classes there, {numbers[1]} here): {', '.join(dropped)}"
        lines.append(f"last layers left initial {misfit}")
    if left := [name for name in shapes if name not in loaded and name not in dropped]:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        lines.append(f"left initial: {', '.join(left[:3])}{more}")
    return lines, misfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedNetwork:
    """Where the weights of a network lie, and how it was trained.

    Arguments:
      weights: their folder or file.
      folder: the run's folder; None for weights of others.
      flags: those of the run, with the flags that are given now in their place.
    """

    weights: Path
    folder: RunFolder | None
    flags: TrainFlags


def find_network(prog: str, run: str | None, given: Mapping[str, FlagValue]) -> SavedNetwork:
    """Find the weights that a path names, and the flags of their run.

    Arguments:
      prog: the command.
      run: the path or the name on the command line; None where there is none.
      given: flags of `penstock train`, by name, which replace those of the run.

    Raises:
      UsageError: no path, or no run there and no `--model_name`.
      FileNotFoundError: nothing is there.
    """
    if run is None:
        raise UsageError(
            "got no run, expected the folder of one, of parameters or of checkpoints, such as "
            f"`{prog} runs/digits_lenet`."
        )
    path = find_run_path(run)
    weights = find_weights(str(path.parent), path.name) if path.name else path
    folder = find_run_folder(weights)
    if folder is None and "model_name" not in given:
        if path.suffix.lower() in SUFFIXES:
            raise UsageError(
                f"the run got the image {run!r}, expected the folder of a run. The images come "
                "after it: penstock predict runs/digits_lenet picture.png"
            )
        there = (path / "config.json").is_file()
        missing = "data.json in their folder" if there else "config.json and data.json beside them"
        raise UsageError(
            f"{run!r} got weights without {missing}, as `penstock train` writes, expected "
            "--model_name as well, and --dataset_name to evaluate it."
        )
    config = {} if folder is None else {"config": str(folder.config)}
    return SavedNetwork(weights=weights, folder=folder, flags=make_train_flags(config | {**given}))


def load_network(
    saved: SavedNetwork, shape: Shape, place: Place = None, *, explains: bool = False
) -> Trainer:
    """Return a trainer that holds the weights, for `test` and `infer`.

    Arguments:
      place: as `Trainer` takes it.
      explains: `infer` also says where the network looks: it runs `Classifier.explain_program`.

    Raises:
      ParameterError: they are of another network.
      ValueError: they are of a network with another number of classes; or there is no feature map
        that could explain it.
    """
    size = shape.image_shape[0]
    network = make_network(saved.flags, shape)
    with name_smallest_size(network.model, size):
        weights = read_weights(saved.weights, network.model, size)
    # Else four tenths of a random head's cross entropy would be in the loss, and say nothing.
    if weights.optional:
        network = make_network(saved.flags, shape, counts_auxiliary=False)
    trainer = Trainer(
        network.train_program,
        infer_func=network.explain_program if explains else network.infer_program,
        place=place,
        precision=make_precision(saved.flags.performance),
    )
    _, misfit = load_weights(
        trainer,
        weights,
        # All of them, whatever scopes the run itself was to leave out.
        ModelFlags(model_name=saved.flags.model.model_name),
        model=network.model,
        find_last_layers=lambda: find_last_layers(saved.flags, shape, trainer),
    )
    if misfit is not None:
        raise ValueError(
            f"--num_classes got {shape.num_classes}, expected that of the weights {misfit}. "
            "Weights of 1001 classes have a background class first: --num_classes=1001 "
            "--labels_offset=-1."
        )
    notes = list(weights.notes)
    if weights.optional:
        notes.append(
            f"no weights for the auxiliary head ({len(weights.optional)} arrays): it is left "
            "initial and out of the loss"
        )
    is_checkpoint = saved.weights.is_dir() and not (saved.weights / DATA_FILE).exists()
    if is_checkpoint and saved.flags.optimizer.moving_average_decay is not None:
        notes.append(
            f"{saved.weights} is a checkpoint: its parameters are used, not their moving average, "
            "which a run's `params` and `best` hold."
        )
    for note in notes if is_writing_process() else ():
        print(escape(note), file=sys.stderr)
    return trainer

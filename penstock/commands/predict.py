"""`penstock predict`: what a trained network sees in images."""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock._errors import FeedError, PreprocessingError
from penstock._files import can_write, replacing
from penstock._image_resizing import encode_png
from penstock._json_values import encode_json
from penstock._model_file import is_model_file
from penstock._text_tables import escape, find_columns, wrap_parts
from penstock.commands._argument_parser import FlagValue, option, parse, positional
from penstock.commands._failures import UsageError, check, check_numbers, command, nearest_path
from penstock.commands._flags import choose_flags, import_plugins
from penstock.commands._run.announce import format_count
from penstock.commands._run.network import SavedNetwork, find_network, open_network
from penstock.commands._run.processes import find_own_place, is_writing_process, join_processes
from penstock.commands._run_folder.folder import Facts
from penstock.commands._run_folder.runs import write_rows
from penstock.inference_model import InferenceModel, choose_best
from penstock.readers import RecordError
from penstock.readers.images import SUFFIXES, describe_left_out, list_images

ENDING = ".explained.png"
# A digit of 28 pixels is shown as large as this at least.
_MIN_PIXELS = 224
_GAP = 8


def _choose_names(images: Sequence[Path], folder: Path) -> list[Path]:
    """Return where in a folder the picture of each image goes, under a name that is free.

    >>> [path.name for path in _choose_names([Path("a/1.png"), Path("b/1.jpg")], Path("out"))]
    ['1.explained.png', '1.explained-2.png']
    """
    taken = set(images)
    names: list[Path] = []
    for image in images:
        path = folder / f"{image.stem}{ENDING}"
        first, number = path, 1
        while path in taken:
            number += 1
            path = first.with_stem(f"{first.stem}-{number}")
        taken.add(path)
        names.append(path)
    return names


def is_explanation(path: Path) -> bool:
    """Return whether a file is such a picture, by its name.

    >>> is_explanation(Path("seven.explained-2.png")), is_explanation(Path("seven.png"))
    (True, False)
    """
    return path.suffix == ".png" and path.stem.rpartition(".")[2].split("-")[0] == "explained"


def draw_explanation(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Return a picture: left what the network gets, right the same under its heat map.

    Arguments:
      image: `[H, W, C]` in 0..255.
      heat: `[h, w]` in 0..1.

    Returns:
      `[H, W, 3]` uint8: two squares of at least 224 pixels side by side.

    >>> draw_explanation(np.zeros((28, 28, 1)), np.ones((7, 7))).shape
    (224, 456, 3)
    """
    import cv2

    from penstock.readers.records.image_decoding import resize_image

    channels = image if image.shape[-1] in (1, 3) else image.mean(axis=-1, keepdims=True)
    pixels = np.clip(np.rint(np.broadcast_to(channels, (*image.shape[:2], 3))), 0, 255)
    # Squares, not a blur: they are what the network gets.
    scale = max(-(-_MIN_PIXELS // min(image.shape[:2])), 1)
    seen = pixels.astype(np.float32).repeat(scale, axis=0).repeat(scale, axis=1)
    height, width = seen.shape[:2]
    shares = np.ascontiguousarray(heat, np.float32)[:, :, np.newaxis]
    heated = np.clip(resize_image(shares, height, width, "bilinear"), 0, 1)
    # In gray, so that each color is one of the heat map: from dark blue to yellow.
    gray = seen.mean(axis=-1, keepdims=True)
    colors = cv2.applyColorMap(np.rint(255 * heated).astype(np.uint8), cv2.COLORMAP_PLASMA)[
        ..., ::-1
    ]
    over = 0.45 * gray + 0.55 * colors
    gap = np.full((height, _GAP, 3), 255, np.float32)
    return np.rint(np.concatenate([seen, gap, over], axis=1)).astype(np.uint8)


_BATCH_SIZE = 32
_EXAMPLES = """examples:
  penstock predict runs/digits_lenet seven.png
  penstock predict runs/photos_mobilenet_v2 holiday/ --top_k=3
  penstock predict runs/digits_lenet scans/ --json=True | jq .classes[0]
  penstock predict runs/digits_lenet scans/ --output=scans.csv
  penstock predict runs/digits_lenet scans/ --explain --output=looks"""
_FROM_TRAIN = choose_flags(
    *("model_name", "num_classes", "preprocessing_name", "train_image_size", "plugin")
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """Classify images with a trained network.

    Arguments:
      run: what to predict with, as for `penstock eval`, or a file of `penstock export`.
      images: files of images, or folders of them.
      top_k: how many classes to print, the likeliest first.
      json: print one line of JSON per image, for programs to read.
      explain: write a picture for each image, NAME.explained.png, of where the network looked for
        its answer (Grad-CAM).
      output: a file for the answers, .csv, .jsonl, .npz or .parquet (with pyarrow). With --explain
        the folder for these pictures, created if it is missing; by default "explained" in the run's
        folder, for weights alone the current folder.
    """

    run: str = positional("RUN")
    images: tuple[str, ...] = positional("IMAGE", "+")
    top_k: int = 5
    json: bool = False
    explain: bool = False
    output: str | None = option("FILE|FOLDER", None)

    def __post_init__(self) -> None:
        check_numbers(self, "top_k>=1")
        if self.output is not None and not self.explain:
            _check_table(self, Path(self.output))
        elif self.output is not None:
            check(self, "output", not Path(self.output).is_file(), "a folder; there is a file.")


@command()
def run(argv: list[str]) -> None:
    """Run `penstock predict` with the arguments after the command's name."""
    flags, overrides = parse(PredictFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    saved = None if is_model_file(flags.run) else find_network(flags.run, overrides)
    files, missing, unread = _find_files(flags.images)
    join_processes()
    table = None if flags.explain or flags.output is None else Path(flags.output)
    if table is not None and is_writing_process():
        check(flags, "output", can_write(table), "a file in a writable folder. Name another.")
    network = _open_file(flags, overrides) if saved is None else _open_run(saved, flags)
    pictures = _choose_pictures(files, flags, network.explanations)
    for name, what in missing.items():
        _say(f"{name}: left out, {what}")
    if unread:
        _say(describe_left_out(unread))
    num_left_out = len(missing)
    rows: list[tuple[Path, np.ndarray]] = []
    told_secs = time.monotonic()
    for start in range(0, len(files), _BATCH_SIZE):
        part: list[tuple[Path, Path | None, np.ndarray]] = []
        end = start + _BATCH_SIZE
        for path, picture in zip(files[start:end], pictures[start:end], strict=True):
            try:
                image = network.read(path)
            except (OSError, RecordError, FeedError, PreprocessingError) as error:
                # The answers to all others are not lost for one; alone it is the only line.
                if len(files) == 1 and not missing:
                    raise
                num_left_out += 1
                is_whole = isinstance(error, PreprocessingError)
                _say(f"{path}: left out, {error if is_whole else 'not a whole image'}")
            else:
                part.append((path, picture, image))
        if not start:
            _say(network.summary)
        answers = _ask(network, [image for _, _, image in part])
        if not is_writing_process():
            continue
        for (path, picture, image), (row, heat) in zip(part, answers, strict=False):
            if picture is not None and heat is not None:
                with replacing(picture) as temporary:
                    temporary.write_bytes(encode_png(draw_explanation(image, heat)))
            if table is None or flags.json:
                _show(path, row, network.class_names, flags, picture)
            if table is not None:
                rows.append((path, row))
        if table is not None and time.monotonic() - told_secs > _PROGRESS_SECS:
            told_secs = time.monotonic()
            _say(f"{min(end, len(files)):,} of {len(files):,} images")
    if table is not None and is_writing_process():
        write_table(table, rows, network.class_names, flags.top_k)
        _say(f"the answers for {format_count(len(rows), 'image')} are in {table}")
    if num_left_out:
        raise ValueError(
            f"got {num_left_out:,} of {len(files) + len(missing):,} that cannot be read, expected "
            "images. Those named above are not there, empty, cut off or of another kind. Write "
            "them again or leave them out."
        )


_PROGRESS_SECS = 5.0
_ENDINGS = (".csv", ".jsonl", ".npz", ".parquet")


def _check_table(flags: PredictFlags, path: Path) -> None:
    """Raise unless answers can be written to a file of this name."""
    # Now, and not when all images are answered.
    is_file = not path.is_dir() and not path.parent.is_file()
    check(flags, "output", is_file, "a file in a folder. Name another.")
    endings = f"a file that ends in {', '.join(_ENDINGS)}, which says how it is written"
    expected = f"{endings}. With --explain it is the folder of the pictures."
    check(flags, "output", path.suffix in _ENDINGS, expected)
    is_there = path.suffix != ".parquet" or importlib.util.find_spec("pyarrow") is not None
    remedy = "Run `pip install pyarrow`, or name a .csv, .jsonl or .npz file."
    check(flags, "output", is_there, f"pyarrow to be installed, which writes Parquet. {remedy}")


def write_table(
    path: Path, rows: Sequence[tuple[Path, np.ndarray]], names: Sequence[str], top_k: int
) -> None:
    """Write the likeliest classes of images to a file; to .npz the probabilities of all classes.

    Arguments:
      rows: images, and the probabilities of each, `[classes]`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.csv"
    >>> write_table(path, [(Path("a.png"), np.array([0.25, 0.75]))], ["cat", "dog"], top_k=1)
    >>> path.read_text().split()
    ['image,class_1,probability_1', 'a.png,dog,0.75']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [str(image) for image, _ in rows]
    best = [choose_best(row, names, top_k) for _, row in rows]
    columns: dict[str, list[object]] = {"image": [*images]}
    for n in range(min(top_k, len(names))):
        columns[f"class_{n + 1}"] = [classes[n]["name"] for classes in best]
        columns[f"probability_{n + 1}"] = [classes[n]["probability"] for classes in best]
    with replacing(path) as temporary:
        if path.suffix == ".npz":
            table = np.reshape([row for _, row in rows], (len(rows), len(names)))
            with temporary.open("wb") as file:
                np.savez(file, image=images, probabilities=table, class_names=list(names))
        elif path.suffix == ".parquet":
            arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
            parquet.write_table(arrow.table(columns), temporary)
        elif path.suffix == ".jsonl":
            facts = [{"image": i, "classes": c} for i, c in zip(images, best, strict=True)]
            temporary.write_text("".join(map(_format_line, facts)))
        else:
            write_rows(temporary, [columns, *zip(*columns.values(), strict=True)])


def _format_line(fact: dict[str, Any]) -> str:
    # A network that has diverged answers nan, which JSON does not have.
    return f"{json.dumps(encode_json(fact), allow_nan=False)}\n"


def _say(text: str) -> None:
    if is_writing_process():
        print(escape(text), file=sys.stderr)


class _Network(NamedTuple):
    """What images are shown to."""

    class_names: Sequence[str]
    read: Callable[[Path], np.ndarray]  # returns the image of a file as the network takes it
    infer: Callable[[np.ndarray], Any]  # returns the answers for images `[B, H, W, C]`
    summary: str  # what happens to images before, in a line
    explanations: Path = Path()  # the folder of explanations, unless another is named


def _open_run(saved: SavedNetwork, flags: PredictFlags) -> _Network:
    # Each process on its own devices, all of them the same: a few images need no more, and what
    # no other process takes part in waits for none.
    trainer, facts, preparation = open_network(saved, find_own_place(), explains=flags.explain)
    height, width, channels = facts.image_shape
    crop = preparation.preprocessing.for_evaluation(height, width)
    side = saved.flags.preprocessing.cache_image_size
    return _Network(
        class_names=facts.class_names,
        read=lambda path: crop({"image": _read_image(path, facts, channels, side)})["image"],
        infer=lambda images: trainer.infer({"image": images}),
        summary=preparation.summary,
        explanations=Path() if saved.folder is None else saved.folder.explanations,
    )


def _open_file(flags: PredictFlags, overrides: Mapping[str, FlagValue]) -> _Network:
    """Return the model of a file that `penstock export` wrote."""
    if unused := [f"--{name}" for name in overrides if name != "plugin"]:
        raise UsageError(
            f"the run got the model {flags.run!r} with {', '.join(unused)}, expected none of them. "
            "The file has its own. To change them, export the run again."
        )
    import_plugins(str(overrides.get("plugin") or ""))  # of preprocessings
    model = InferenceModel.load(flags.run, place=find_own_place())
    host = model.manifest.host
    if "image" not in host or model.class_names is None or flags.explain:
        raise UsageError(
            f"the run got the model {flags.run!r}, expected one of images, with the names of their "
            "classes, as `penstock export` writes it; and a run with --explain, which needs the "
            "network inside."
        )
    name = host["image"]["input"]
    return _Network(
        class_names=model.class_names,
        read=lambda path: model.prepare([path])[name][0],
        infer=lambda images: model.infer({name: images}),
        summary=f"images: {host['image']['preprocessing']['name']}, which the model was made with",
    )


def _ask(network: _Network, images: Sequence[np.ndarray]) -> list[tuple[np.ndarray, Any]]:
    """Return the probabilities of each image, `[classes]`, and where it is looked at, `[h, w]`."""
    if not images:
        return []
    answers = network.infer(np.stack(images))
    if isinstance(answers, dict):
        return list(zip(answers["probabilities"], answers["heat"], strict=True))
    return [(row, None) for row in np.asarray(answers)]


def _choose_pictures(
    files: Sequence[Path], flags: PredictFlags, folder: Path
) -> list[Path] | list[None]:
    """Return where the explanation of each image goes, in a folder that is there."""
    if not flags.explain:
        return [None] * len(files)
    # Not beside the images: there the next training would take them for images of the class.
    if flags.output is not None:
        folder = Path(flags.output)
    if is_writing_process():
        folder.mkdir(parents=True, exist_ok=True)
    return _choose_names(files, folder)


def _find_files(words: Sequence[str]) -> tuple[list[Path], dict[str, str], Counter[str]]:
    """Return the images that paths name, sorted in a folder; and what is wrong with others.

    At last how many there are in folders of the kinds that are not read.
    """
    files: list[Path] = []
    missing: dict[str, str] = {}
    unread: Counter[str] = Counter()
    for word in words:
        path = Path(word)
        images = [path] * path.is_file()
        if path.is_dir():
            listed, more = list_images(path)
            images, unread = [*map(Path, listed)], unread + more
        # Those of an earlier --explain are no images of the user's.
        images = [image for image in images if image == path or not is_explanation(image)]
        # Not every shell puts the names in a pattern's place, and in quotes none does.
        images = images or [Path(name) for name in sorted(glob.glob(word)) if Path(name).is_file()]
        if not images:
            missing[word] = "a folder without images" if path.is_dir() else "no file of that name"
        files += images
    if not files:
        word, what = next(iter(missing.items()))
        hint = "" if Path(word).is_dir() else nearest_path(Path(word))
        raise FileNotFoundError(
            f"{word!r} got {what}, expected an image or a folder of {', '.join(SUFFIXES)}.{hint}"
        )
    return files, missing, unread


def _read_image(path: Path, facts: Facts, channels: int, side: int | None) -> np.ndarray:
    """Return an image in the channels and the size of those that the network was trained on."""
    from penstock.readers.records.image_decoding import decode_as_stored, read_image

    stored = facts.stored_shape
    encoded = read_image(path)
    image, is_resized = decode_as_stored(
        encoded, channels=channels, stored=stored, shorter_side=side, name=str(path)
    )
    if stored is not None and is_resized:
        _say(f"{path}: resized to {stored[0]} x {stored[1]}, the size it was trained on")
    return image


def _show(
    path: Path, row: np.ndarray, names: Sequence[str], flags: PredictFlags, picture: Path | None
) -> None:
    classes = choose_best(row, names, flags.top_k)
    if flags.json:
        # Flushed line by line: `jq` behind a pipe sees each image when it is done.
        explained = {} if picture is None else {"explanation": str(picture)}
        fact = {"image": str(path), "classes": classes, **explained}
        print(_format_line(fact), end="", flush=True)
    else:
        parts = [f"  {entry['name']} {entry['probability']:.1%}" for entry in classes]
        explained = [] if picture is None else [f"  -> {picture}"]
        print(wrap_parts([str(path), *parts, *explained], find_columns()), flush=True)

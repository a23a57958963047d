"""Mistakes of newcomers: the folder they are made in, and what `penstock` answers to each."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from penstock import commands
from penstock.commands._flags import list_datasets
from tests.commands.running import TINY


class Mistake(NamedTuple):
    """A command, its exit status and the line that it answers with.

    `{tiny}` in the command stands for a network that compiles in no time, `{folder}` in the answer
    for the folder of the mistakes.
    """

    command: str
    status: int
    answer: str
    is_quick: bool

    @property
    def words(self) -> list[str]:
        return self.command.replace("{tiny}", " ".join(TINY[:3])).split()


def read_mistakes() -> list[Mistake]:
    """Return the rows of `mistakes.txt`, whose head says how they are written."""
    text = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8")
    rows = re.findall(r"^([$%]) penstock (.+)\n\[(\d)\] (.+)$", text, re.MULTILINE)
    return [
        Mistake(command, int(status), answer, mark == "$") for mark, command, status, answer in rows
    ]


def fill_in(answer: str, folder: Path) -> str:
    """Return an answer with the folder of the mistakes, and what is registered here."""
    # Other tests register networks and data sets of their own.
    here = {"folder": folder, "data": ", ".join(list_datasets())}
    for name, value in here.items():
        answer = answer.replace(f"{{{name}}}", str(value))
    return answer


CONFIGS = {
    "spelling.yaml": "learning_rat: 0.1\n",
    "type.yaml": "batch_size: many\n",
    "list.yaml": "- lenet\n- vgg_16\n",
    "cut.yaml": "model: {model_name: lenet\n",
    "image.yaml": b"\x89PNG\r\n\x1a\n\xff",
}
LOG = "kind,epoch,step,global_step,seconds,examples,loss\n"


def write_files(root: Path) -> None:
    """Write data, weights and logs in which something is missing, into a folder."""
    (root / "empty").mkdir()
    (root / "table.csv").mkdir()
    (root / "table.png").mkdir()
    (root / "classes/cat").mkdir(parents=True)
    boxed = ("boxed/in/cat", "boxed/in/dog")
    pairs = (f"pair/{name}" for name in "abcdefghijk")
    for path in ("photos/cat", "photos/dog", "single/cat", *boxed, *pairs):
        (root / path).mkdir(parents=True)
        cv2.imwrite(str(root / path / "1.png"), np.zeros((9, 9, 3), np.uint8))
    for path in ("unsorted/train", "unsorted/test", "lines/two\nlines", "lines/cat", "lost/dog"):
        (root / path).mkdir(parents=True)
        cv2.imwrite(str(root / path / "1.png"), np.zeros((9, 9, 3), np.uint8))
    (root / "lost/cat").mkdir()
    (root / "lost/cat/1.png").write_text("not an image")
    for path in ("renamed/Train/cat", "renamed/Test/cat"):
        (root / path).mkdir(parents=True)
    (root / "animals.zip").touch()
    (root / "flat").mkdir()
    for number in range(3):
        cv2.imwrite(str(root / f"flat/{number}.png"), np.zeros((9, 9, 3), np.uint8))
    (root / "photos/cat/2.png").write_text("not an image")
    (root / "text.png").write_text("not an image")
    (root / "nine.gif").write_bytes(b"GIF89a" + bytes(20))
    cv2.imwrite(str(root / "nine.png"), np.zeros((8, 8), np.uint8))
    (root / "weights.safetensors").write_bytes(b"nothing")
    (root / "cifar10_train.tfrecord").write_bytes(b"nothing like a record")
    parts = (f"parts/part-{number:02d}" for number in range(11))
    heic, texts = ("heic/cat/1.jpg", "heic/dog/1.HEIC"), ("text/cat/1.jpg", "text/dog/notes.txt")
    only = ("only/train/cat/1.jpg", "only/train/dog/1.jpg")
    records = ("records/a_train.tfrecord", "records/b_train.tfrecord")
    for name in ("file", "script.py", *parts, *heic, *texts, *only, *records):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "notes.txt").write_text("learning rate 0.1 was too much\n")
    for name, text in CONFIGS.items():
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (root / "logs").mkdir()
    (root / "logs/log.csv").write_text(f"{LOG}step,0,0,0,1.5,32,0.25\n")
    (root / "begun").mkdir()
    (root / "begun/log.csv").write_text(LOG)


def cut(path: Path) -> None:
    # So early that names of folders, which are longer elsewhere, are not in what is left.
    path.write_bytes(path.read_bytes()[:10])


def write_runs(root: Path) -> None:
    """Train a run for a step, and copy it with one file cut or removed each."""
    words = ["train", *TINY[:3], "--stop_at_step=1", f"--output_dir={root}"]
    assert commands.main(words) == 0
    run = root / "runs/digits_tiny"
    broken = {
        "config": run / "config.json",
        "data": run / "data.json",
        "params": run / "params/params.safetensors",
        "log": run / "log.csv",
        "record": run / "run.json",
    }
    for name, path in broken.items():
        copy = root / f"cut_{name}"
        shutil.copytree(run, copy)
        cut(copy / path.relative_to(run))
        copy = root / f"no_{name}"
        shutil.copytree(run, copy)
        (copy / path.relative_to(run)).unlink()

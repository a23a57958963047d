"""Make the pictures of README and docs: a run's progress, its curves, TensorBoard, learning rates.

Run it from the checkout with `python docs/make_pictures.py`. They come out much the same each time,
but for times. The picture of TensorBoard needs `chromium` or `google-chrome` on the PATH, and is
left as it is without.
"""

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import optax
from rich.console import Console

import penstock as ps
from penstock import layers, readers
from penstock.handlers import Evaluate, LearningRateFinder, Plot, Progress, TensorBoard

PICTURES = Path(__file__).parent / "pictures"
NAMES = ("loss", "accuracy")
NUM_EPOCHS = 8
NUM_COLUMNS = 100
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def train_program() -> tuple[Any, Any]:
    """Return the loss and the accuracy of a small conv net on digits."""
    hidden = layers.data("image", shape=[8, 8, 1])
    for num_filters in (32, 64):
        hidden = layers.simple_img_conv_pool(
            hidden, num_filters, 3, pool_size=2, pool_stride=2, conv_padding=1, act="relu"
        )
        hidden = layers.batch_norm(hidden) if num_filters == 32 else hidden
    prediction = layers.fc(layers.dropout(hidden, 0.3), size=10, act="softmax")
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


class Snapshot:
    """Take a picture of a `Progress` on a terminal, in the middle of a late epoch."""

    def __init__(self, progress: Progress, terminal: Terminal) -> None:
        self._progress, self._terminal = progress, terminal

    def __call__(self, event: Any) -> None:
        """Take it when it is time."""
        if isinstance(event, ps.EndStep) and event.epoch >= NUM_EPOCHS - 3:
            time.sleep(0.02)  # the line is refreshed four times a second: an epoch is too short
        if isinstance(event, ps.EndStep) and (event.epoch, event.step) == (NUM_EPOCHS - 3, 20):
            console = Console(record=True, width=NUM_COLUMNS, file=io.StringIO())
            line = r"epoch \d/\d  loss [^\n]*\(test[^\n]*"
            for each in re.findall(line, self._terminal.getvalue()):
                console.print(each, highlight=False)
            live: Any = self._progress._display
            console.print(live._progress.get_renderable())
            console.save_svg(str(PICTURES / "progress.svg"), title="training")


def main() -> None:
    """Train, and make the pictures."""
    PICTURES.mkdir(exist_ok=True)
    os.environ |= {"TERM": "xterm", "COLUMNS": str(NUM_COLUMNS)}
    train_reader = readers.dataset("digits", "train", 64, shuffle=True)
    test_reader = readers.dataset("digits", "test", 64)
    finder = LearningRateFinder(
        base_learning_rate=1e-3, names=NAMES, path=PICTURES / "learning_rate.png"
    )
    trainer = ps.Trainer(train_program, optax.adam(1e-3), on_non_finite="skip")
    trainer.train(train_reader, finder, num_epochs=10)
    logs = Path(tempfile.mkdtemp(), "runs")
    for name, learning_rate in (("slow", 5e-4), ("fast", 2e-3)):
        evaluate = Evaluate(test_reader, names=NAMES, file=io.StringIO())
        options: dict[str, Any] = {"names": NAMES, "test": evaluate}
        handlers = [
            evaluate,
            Plot(PICTURES / "curves.png", every_steps=2, **options),
            TensorBoard(logs / name, every_steps=2, **options),
        ]
        ps.Trainer(train_program, optax.adam(learning_rate)).train(
            train_reader, handlers, num_epochs=NUM_EPOCHS
        )
    photograph_tensorboard(logs)
    # A run of its own, for it is slowed down.
    evaluate = Evaluate(test_reader, names=NAMES, file=io.StringIO())
    terminal = Terminal()
    progress = Progress(NAMES, test=evaluate, file=terminal)
    ps.Trainer(train_program, optax.adam(2e-3)).train(
        train_reader, [evaluate, progress, Snapshot(progress, terminal)], num_epochs=NUM_EPOCHS
    )
    for path in sorted(PICTURES.iterdir()):
        print(f"{path} {path.stat().st_size / 1e3:.0f} kB")


def photograph_tensorboard(logs: Path) -> None:
    """Serve a folder of runs with TensorBoard, and take a picture of its page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no {' or '.join(BROWSERS)}: the picture of TensorBoard stays as it is")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    # The page shows the folder: a relative one says nothing of this machine.
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs"]
    options = ["--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, *options], cwd=logs.parent, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                with urllib.request.urlopen(f"{address}/data/runs") as answer:
                    if b"fast/train" in answer.read():
                        break
            except OSError:
                pass
            time.sleep(0.2)
        picture = f"--screenshot={PICTURES / 'tensorboard.png'}"
        size = ["--window-size=1200,800", "--virtual-time-budget=20000", "--hide-scrollbars"]
        headless = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
        subprocess.run(
            [*headless, picture, *size, f"{address}/#scalars"],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

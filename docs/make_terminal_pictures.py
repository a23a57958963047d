"""Make the pictures of the command line: what `penstock` prints in a terminal of 80 columns.

Run it from the checkout with `python docs/make_terminal_pictures.py`. Each command runs in a
terminal of its own, so that the pictures show what a person sees.
"""

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
NUM_COLUMNS = 80
COMMANDS = {
    "train_help": ["train", "--help"],
    "train": ["train", "--log_loss_every_n_iters=25"],
    "runs": ["runs"],
}


def run_in_terminal(words: list[str], folder: str) -> str:
    """Return what `penstock` prints in a terminal, colours included."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock", *words]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(NUM_COLUMNS)}
    printed = b""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        # Reading ends in an error when the last process has closed the terminal.
        try:
            while part := os.read(ours, 65536):
                printed += part
        except OSError:
            pass
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Run the commands, and make a picture of each."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            text = run_in_terminal(words, folder)
            longest = max(map(len, Text.from_ansi(text).plain.splitlines()))
            console = Console(record=True, width=NUM_COLUMNS, file=io.StringIO())
            # With an empty line, as the picture cuts what hangs below the last one.
            console.print(Text.from_ansi(f"{text.rstrip()}\n"))
            path = PICTURES / f"{name}.svg"
            # Headed by the command as it was run. The classes in it have the same names each time.
            title = " ".join(["penstock", *words])
            console.save_svg(str(path), title=title, unique_id=f"penstock-{name}")
            print(f"{path} {path.stat().st_size / 1e3:.0f} kB, {longest} columns")


if __name__ == "__main__":
    main()

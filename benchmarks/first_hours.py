"""The first hours of a newcomer: a first network, own photos, a report; penstock and three others.

    python -m benchmarks first_hours --environments /tmp/first_hours
    python -m benchmarks first_hours --keras_python ~/keras/bin/python

It times what a person waits for, each command once and in a new process, and counts what a person
types. "others" is the share of the machine's processor time that other processes used meanwhile.
The other libraries' programs are in `_first_hours/`, written as their documentation teaches; none
downloads data or weights. `--environments` makes an environment for each in a folder, times its
installation, and adds a clone of this checkout with `make train`. Without it, only this
interpreter's penstock is measured, and the libraries whose interpreter is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import _timing

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "_first_hours"
NUM_PHOTOS, NUM_NEW = 150, 20
"""Pictures of a class: to train on, and to ask about afterwards."""

PORT = "{port}"
"""In a command: a free port, and the command serves a page until it is stopped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What a newcomer wants, the commands typed for it, and the programs typed before."""

    name: str
    commands: tuple[str, ...]
    scripts: tuple[str, ...] = ()
    shows: str = ""
    """What a person gets where the commands print no accuracy."""

    def count_typed(self) -> tuple[int, int]:
        """Return lines and characters, without blank lines, indentation and a served port."""
        text = [(SCRIPTS / name).read_text() for name in self.scripts]
        text += [each.partition(f" --port={PORT}")[0] for each in self.commands]
        lines = [line.strip() for each in text for line in each.splitlines() if line.strip()]
        return len(lines), sum(map(len, lines))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A library: what is installed of it, and its three goals."""

    name: str
    packages: tuple[str, ...]
    goals: tuple[Goal, ...]


def _penstock_goals(first: str, penstock: str = "penstock") -> tuple[Goal, ...]:
    photos = (f"{penstock} train photos", f"{penstock} predict photos new")
    report = (f"{penstock} report photos",)
    return (
        Goal(name="first network", commands=(first,)),
        Goal(name="own photos", commands=photos),
        Goal(name="report", commands=report, shows="one HTML page"),
    )


def _script(goal: str, name: str, shows: str = "") -> Goal:
    return Goal(name=goal, commands=(f"python {name}",), scripts=(name,), shows=shows)


WHEEL = Contender(name="penstock", packages=("jax",), goals=_penstock_goals("penstock train"))
CLONE = Contender(
    name="penstock, clone",
    packages=("jax",),
    goals=_penstock_goals("make train", ".venv/bin/penstock"),
)
TORCH = ("torch==2.14.1", "torchvision==0.29.1")
"""They fit each other. A package index has them for Linux built for CUDA; they run on the CPU."""

TENSORBOARD = f"tensorboard --logdir lightning_logs --port={PORT}"
OTHERS = (
    Contender(
        name="keras",
        packages=("keras", "jax", "grain", "pillow", "scikit-learn", "matplotlib"),
        goals=(
            _script("first network", "keras_digits.py"),
            _script("own photos", "keras_photos.py"),
            _script("report", "keras_report.py", "curves, by matplotlib"),
        ),
    ),
    Contender(
        name="lightning",
        packages=("lightning", *TORCH, "tensorboard", "scikit-learn"),
        goals=(
            _script("first network", "lightning_digits.py"),
            _script("own photos", "lightning_photos.py"),
            Goal(name="report", commands=(TENSORBOARD,), shows="TensorBoard's page"),
        ),
    ),
    Contender(
        name="timm",
        packages=("timm", *TORCH, "scikit-learn"),
        goals=(
            _script("first network", "timm_digits.py"),
            _script("own photos", "timm_photos.py"),
        ),
    ),
)


def write_photos(folder: Path, *, num_photos: int = NUM_PHOTOS, num_new: int = NUM_NEW) -> None:
    """Write pictures of two classes into `folder/photos`, and others of both into `folder/new`.

    They are crops of scikit-learn's two photographs: at any position, of any size from 80 to 400
    pixels, with changed colours. Pictures of both folders may show the same place.
    """
    import cv2
    import numpy as np
    from sklearn.datasets import load_sample_image

    generator = np.random.default_rng(0)
    for name, source in (("flower", "flower.jpg"), ("temple", "china.jpg")):
        photograph = load_sample_image(source)
        for number in range(num_photos + num_new):
            height, width = generator.integers(80, 400, size=2)
            top = generator.integers(photograph.shape[0] - height)
            left = generator.integers(photograph.shape[1] - width)
            colours = generator.uniform(0.5, 1.2, size=3)
            cut = photograph[top : top + height, left : left + width] * colours
            is_new = number >= num_photos
            path = folder / "new" / f"{name}_{number}.jpg"
            path = path if is_new else folder / "photos" / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.clip(cut, 0, 255).astype(np.uint8))


def find_result(printed: str) -> str:
    """Return the result that a person reads: new pictures classified, else the last accuracy."""
    answers = re.findall(r"^(?:new/)?(flower|temple)_\d+\.jpg\s+(\w+)", printed, re.MULTILINE)
    if answers:
        return f"{sum(right == said for right, said in answers)} of {len(answers)} new ones right"
    found = re.findall(r"accuracy\W*([\d.]*\d)(%?)", printed)
    if not found:
        return ""
    number, is_percent = found[-1]
    return f"accuracy {float(number) / (100 if is_percent else 1):.3f}"


def _environment(python: Path) -> dict[str, str]:
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"KERAS_BACKEND": "jax", "MPLBACKEND": "Agg", "COLUMNS": "200"}
    return {**os.environ, "PATH": path, **quiet}


def serve(words: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    """Start a server; return the seconds until its page answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start = time.perf_counter()
    server = subprocess.Popen(
        [each.replace(PORT, port) for each in words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while time.perf_counter() - start < 60 and server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}"):
                    return time.perf_counter() - start
            except OSError:
                time.sleep(0.05)
    finally:
        server.terminate()
        server.wait()
    raise RuntimeError(f"{shlex.join(words)} got no answer from its page, expected one in 60 s.")


def reach(goal: Goal, folder: Path, python: Path) -> tuple[float, str]:
    """Do what is typed for a goal; return the seconds of its commands and what they printed."""
    environment = _environment(python)
    seconds, printed = 0.0, ""
    for name in goal.scripts:
        shutil.copy(SCRIPTS / name, folder)
    for command in goal.commands:
        words = shlex.split(command)
        if PORT in command:
            seconds += serve(words, folder, environment)
            continue
        # Looked up by hand: the PATH that counts is the one in `environment`.
        program = words[0] if "/" in words[0] else shutil.which(words[0], path=environment["PATH"])
        start = time.perf_counter()
        done = subprocess.run(
            [program or words[0], *words[1:]],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        seconds += time.perf_counter() - start
        printed += done.stdout
        if done.returncode:
            raise RuntimeError(f"{command} got exit code {done.returncode}:\n{done.stdout[-2000:]}")
    return seconds, printed


def read_processor_secs() -> tuple[float, float]:
    """Return the processor seconds that everything here has used, and what we and ours have.

    Zeros where the system is not Linux. Processes count among ours once they have ended.
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0, 0.0
    user, nice, system, _, _, interrupts, soft_interrupts = stat.read_text().split()[1:8]
    ticks = sum(map(int, (user, nice, system, interrupts, soft_interrupts)))
    return ticks / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


def install(contender: Contender, place: Path) -> None:
    """Make an environment where there is none, and note how many seconds that took."""
    if place.exists():
        return
    start = time.perf_counter()
    if contender is CLONE:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
        make = ["make", "--quiet", ".venv/.installed-test"]
        subprocess.run(make, cwd=place, check=True, stdout=sys.stderr)
        python = place / ".venv/bin/python"
    else:
        packages = list(contender.packages)
        if contender is WHEEL:
            wheels = tempfile.mkdtemp()
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--wheel-dir", wheels, str(ROOT)], check=True)
            packages = [str(next(Path(wheels).glob("*.whl")))]
            start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        python = place / "bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    (python.parent / "seconds.json").write_text(json.dumps(time.perf_counter() - start))


def _find_versions(contender: Contender, python: Path) -> str:
    packages = [each.partition("==")[0] for each in contender.packages]
    names = [*packages, *(["penstock"] if "penstock" in contender.name else [])]
    code = f"import importlib.metadata as m\nfor n in {names}: print(n, m.version(n))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return ", ".join(done.stdout.splitlines())


def measure(contender: Contender, python: Path, folder: Path) -> Iterator[list[str]]:
    """Reach the goals of a contender in turn; yield a row of each as it is reached."""
    for goal in contender.goals:
        start, all_before, ours_before = time.perf_counter(), *read_processor_secs()
        try:
            seconds, printed = reach(goal, folder, python)
            measured = [f"{seconds:.1f}", find_result(printed) or goal.shows]
        except RuntimeError as error:  # the others have their turn all the same
            print(error, file=sys.stderr)
            measured = ["-", "failed"]
        all_after, ours_after = read_processor_secs()
        others = all_after - all_before - (ours_after - ours_before)
        capacity = (time.perf_counter() - start) * (os.cpu_count() or 1)
        measured.append(f"{max(others / capacity, 0):.0%}")
        lines, characters = goal.count_typed()
        yield [contender.name, goal.name, str(lines), str(characters), *measured]


def _choose(options: argparse.Namespace) -> list[tuple[Contender, Path]]:
    """Return who is measured, with an interpreter of each."""
    chosen = [(WHEEL, Path(sys.executable))]
    if options.environments:
        options.environments.mkdir(parents=True, exist_ok=True)
        folder = options.environments.absolute()
        chosen = [(each, folder / each.name / "bin/python") for each in (WHEEL, *OTHERS)]
        chosen.insert(1, (CLONE, folder / "clone" / ".venv/bin/python"))
        for each, python in chosen:
            install(each, python.parent.parent.parent if each is CLONE else python.parent.parent)
    for each in OTHERS:
        if python := getattr(options, f"{each.name}_python"):
            chosen = [pair for pair in chosen if pair[0] is not each] + [(each, python.absolute())]
    return chosen


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks first_hours")
    parser.add_argument("--environments", type=Path, help="a folder for an environment of each")
    parser.add_argument("--install_only", action="store_true", help="only make them")
    for each in OTHERS:
        parser.add_argument(f"--{each.name}_python", type=Path, help="an interpreter that has it")
    options = parser.parse_args(arguments)
    chosen = _choose(options)
    print(f"{_timing.environment()}\n\nVersions, and the seconds of the installation:\n")
    for contender, python in chosen:
        noted = python.parent / "seconds.json"
        seconds = f"{json.loads(noted.read_text()):.0f} s" if noted.exists() else "not timed"
        print(f"- {contender.name}: {_find_versions(contender, python)}; {seconds}")
    if options.install_only:
        return
    header = ["library", "goal", "lines typed", "characters", "seconds", "result", "others"]
    print(f"\n{_timing.table(header, [])}", flush=True)
    for contender, python in chosen:
        with tempfile.TemporaryDirectory() as temporary:
            # A clone is trained in, as `make train` does.
            folder = python.parent.parent.parent if contender is CLONE else Path(temporary)
            for name in ("runs", "photos", "new"):
                shutil.rmtree(folder / name, ignore_errors=True)
            write_photos(folder)
            # Each is printed as it comes: a run that is cut off loses only what it did not reach.
            for row in measure(contender, python, folder):
                print(_timing.row(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

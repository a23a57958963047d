"""What a beginner does wrong ends in one readable line, with the status that fits.

Every mistake of `mistakes.txt` is answered with its line and its exit status, and no more.
"""

import re

import pytest

from tests.checkpoints.test_disk_failures import tmpfs
from tests.commands import mistakes
from tests.commands.running import CODE, TINY, fail, penstock, run, succeed, write_images

MISTAKES = mistakes.read_mistakes()
TRIED = [
    pytest.param(mistake, marks=() if mistake.is_quick else pytest.mark.slow, id=mistake.command)
    for mistake in MISTAKES
]
FAST = (*TINY, "--stop_at_step=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder in which something is missing."""
    root = tmp_path_factory.mktemp("mistakes")
    mistakes.write_files(root)
    return root


@pytest.fixture(scope="module")
def runs(folder):
    """Put a run into the folder, and copies of it that were cut."""
    mistakes.write_runs(folder)


@pytest.mark.parametrize("mistake", TRIED)
def test_mistake_is_answered_with_its_line(mistake, folder, request, capsys, monkeypatch):
    if not mistake.is_quick:
        request.getfixturevalue("runs")
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    status, _, err = run(capsys, *mistake.words)
    assert sorted(folder.rglob("*")) == before or mistake.status != 2
    lines = [line for line in err.splitlines() if line.startswith("penstock")]
    assert lines == [mistakes.fill_in(mistake.answer, folder)]
    assert err.splitlines()[-1] == lines[0]
    assert status == mistake.status
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [("train", ""), ("eval", ""), ("predict", "runs/digits_tiny", "")]
)
def test_empty_word_is_not_the_current_folder(words, capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    err = fail(capsys, *words, status=2)
    assert " got '', expected a name. Is a shell variable unset?" in err


@pytest.mark.slow
def test_platform_that_is_not_there_is_said_at_once(tmp_path):
    done = penstock(tmp_path, "train", *FAST, JAX_PLATFORMS="cuda")
    assert done.returncode == 1
    assert "expected a platform present here: JAX_PLATFORMS='cuda' allows no other" in done.stderr
    assert done.stderr.count("penstock train: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_batch_is_not_larger_than_the_data(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    words = ("--dataset_name=image_folder", "--dataset_dir=pair", f"--output_dir={tmp_path}")
    out, _ = succeed(capsys, "train", *FAST, *words, "--batch_size=700")
    size = re.search(r"--batch_size=700 is more than there are: a step takes all (\d+) im", out)
    assert size is not None, out
    assert f"batch      {size[1]} = 1 process x 1 device (cpu) x {size[1]}; 1 step an epoch" in out


def test_damaged_image_is_left_out_and_named_where_that_is_asked_for(capfd, caplog, tmp_path):
    write_images(tmp_path / "photos", "cat", "dog", count=20, suffix="jpg")
    # The end of the last is missing, which is seen before anything is decoded.
    for number, end in ((0, b"\xff\xd9"), (3, b"\xff\xd9"), (7, b"")):
        path = tmp_path / f"photos/cat/{number}.jpg"
        path.write_bytes(b"\xff\xd8 not an image" + end)
    words = ("--dataset_name=image_folder", "--dataset_dir=photos")
    err = fail(capfd, "train", *FAST, *words)
    assert re.search(r"photos/cat/\d.jpg.*leaves it out with --skip_damaged=True", err)
    out, _ = succeed(capfd, "train", *FAST, *words, "--skip_damaged=True", "--stop_at_step=3")
    out = " ".join(out.split())
    assert "left out of 'photos': 1 file that is no whole image, 'cat/7.jpg'" in out
    pattern = r"skipped 2 of \d\d records. The first: .*cat/\d.jpg.* The others: .*cat/\d.jpg\."
    assert re.search(pattern, caplog.text)
    assert "best test" in out


def test_mistakes_leave_no_folder_of_a_run(folder, capsys, tmp_path):
    assert run(capsys, "train", *FAST, "--num_classes=5")[0] == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_disk_without_space_is_one_line(tmp_path):
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000)); "
    done = penstock(tmp_path, "train", *FAST, code=limited + CODE, JAX_ENABLE_COMPILATION_CACHE="0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstock train: ")
    assert "File too large" in last


@pytest.mark.slow
def test_disk_that_becomes_full_is_one_line_and_the_same_command_trains_when_there_is_room():
    with tmpfs(600_000) as disk:
        (disk / "filler").write_bytes(bytes(540_000))
        done = penstock(disk, "train", *FAST, "--stop_at_step=20")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        *_, last = done.stderr.splitlines()
        assert last.startswith("penstock train: checkpoint of global step 20: ")
        assert "No space left on device" in last
        assert last.endswith("See to the cause; the same command goes on from there.")
        (disk / "filler").unlink()
        assert penstock(disk, "train", *FAST, "--stop_at_step=20").returncode == 0


@pytest.mark.slow
def test_environment_variable_shows_where_it_failed(tmp_path):
    words = ("train", *FAST, "--num_classes=5")
    done = penstock(tmp_path, *words, PENSTOCK_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr

"""The folder of compiled programs: where it is, and what is deleted from it."""

import os

import pytest

from tests import compiling
from tests.source_tree import ROOT


def test_folder_is_in_the_users_cache_by_version(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = compiling.folder()
    assert kept.parent == tmp_path / "cache" / "penstock-tests"
    assert kept.name.startswith("jax-0.")
    assert kept.is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiling.folder() == tmp_path / ".cache" / "penstock-tests" / kept.name


def test_folder_is_in_the_checkout_where_the_users_cannot_be(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiling.folder().parent == ROOT / ".pytest_cache"


@pytest.mark.parametrize(("most_bytes", "left"), [(30, ["a", "b", "c"]), (25, ["b", "c"]), (9, [])])
def test_what_was_not_used_for_longest_is_deleted(most_bytes, left, tmp_path):
    for number, name in enumerate("abc"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    compiling.prune(tmp_path, most_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == left

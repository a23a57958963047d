"""A folder of its own for each test of a command, which reads and writes where it is called."""

import pytest


@pytest.fixture(autouse=True)
def work_in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

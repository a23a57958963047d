"""The secret of a run: where it comes from, and what is refused."""

import re

import pytest

from penstock.distributed import secret


def make_file(tmp_path, text="from a file\n", mode=0o600):
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return {"PENSTOCK_SECRET_FILE": str(path)}


def test_secret_comes_from_the_environment_else_from_a_file(tmp_path):
    assert secret.read({}) == ""
    assert secret.read(make_file(tmp_path)) == "from a file"
    assert secret.read(make_file(tmp_path) | {"PENSTOCK_SECRET": "own"}) == "own"


def test_file_that_others_may_read_is_refused(tmp_path):
    environ = make_file(tmp_path, mode=0o640)
    text = (
        f"PENSTOCK_SECRET_FILE got the mode 640 of {tmp_path}/secret, expected 600. Whoever knows "
        f"the secret may take the place of a process. Run chmod 600 {tmp_path}/secret."
    )
    with pytest.raises(PermissionError, match=re.escape(text)):
        secret.read(environ)


def test_empty_file_is_no_secret(tmp_path):
    text = f"PENSTOCK_SECRET_FILE got the empty file {tmp_path}/secret, expected a secret. "
    with pytest.raises(ValueError, match=re.escape(text)):
        secret.read(make_file(tmp_path, text="\n"))


def test_launcher_makes_a_new_secret_unless_it_was_given_one(tmp_path):
    first, second = (secret.make_variables({}) for _ in range(2))
    assert len(first["PENSTOCK_SECRET"]) == 32
    assert first != second
    assert secret.make_variables({"PENSTOCK_SECRET": "own"}) == {}

"""`penstock cache`: lists and clears the decompressed copies."""

import gzip

from penstock.commands import main
from penstock.readers.records import TFRECORD, RecordFiles, RecordFormat


def test_copies_are_listed_and_cleared_but_for_those_in_use(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'cache'}: 0 copies, 0 B of at most 107.4 GB\n"
    held = []
    for name in ("one.gz", "two.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(TFRECORD.frame(b"x" * 1984)))
        held.append(RecordFiles([path], RecordFormat()))
    held.pop(0)
    assert main(["cache", "list"]) == 0
    first, second, total = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith(str(tmp_path / "one.gz"))
    assert "in use" in second
    assert total.endswith("2 copies, 4.0 kB of at most 107.4 GB")
    assert main(["cache", "clear"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("removed 1 copy: 2.0 kB\n")
    assert "two.gz" in said
    monkeypatch.setenv("PENSTOCK_CACHE_MAX_BYTES", "much")
    assert main(["cache"]) == 2
    assert "expected a number of bytes" in capsys.readouterr().err

"""`penstock cache`: lists and clears compiled programs and decompressed copies."""

import gzip

from penstock.commands import main
from penstock.readers.records import TFRECORD, RecordFiles, RecordFormat


def test_copies_are_listed_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'cache'}: copies: 0, 0 B\n"
        f"{tmp_path / 'cache' / 'compiled'}: compiled programs: 0, 0 B\n"
    )
    paths = [tmp_path / name for name in ("one.gz", "two.gz")]
    for path in paths:
        path.write_bytes(gzip.compress(TFRECORD.frame(b"x" * 1984)))
    RecordFiles(paths, RecordFormat())
    paths[1].unlink()
    assert main(["cache", "list"]) == 0
    first, second, total, _ = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith(str(paths[0]))
    assert "source changed" in second
    assert total.endswith("copies: 2, 3.906 KiB")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("removed copies: 2, 3.906 KiB\n")


def test_clearing_a_folder_leaves_programs_of_the_common_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "cache" / "compiled" / "jit_step-cache"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"x")
    assert main(["cache", "clear", f"--cache_dir={tmp_path / 'own'}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "removed copies: 0, 0 B",
        f"{tmp_path / 'own'}: copies: 0, 0 B",
    ]
    assert program.exists()
    assert main(["cache", "clear"]) == 0
    assert not program.exists()

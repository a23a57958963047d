"""The counter of calls: it finds the package's files, in order, and the same numbers each time."""

from benchmarks import __main__ as command
from benchmarks import calls


def test_two_counts_of_a_run_are_the_same_and_name_files_of_the_package(capsys):
    assert command.main(["calls", "--list"]) == 0
    printed = capsys.readouterr().out
    counted = calls.measure()
    for name, each in counted.items():
        files = each.ordered_files()
        assert f"{name}: files in the order" in printed
        assert all(f"{number:6}  {file}\n" in printed for file, number in files)
        assert sum(number for _, number in files) == len(each.entered)
        assert len(files) - 1 <= each.num_moves < len(each.entered)
    assert counted["Trainer(...)"].files[0] == "trainer/_trainer.py"
    assert counted["first step"].entered[0].co_qualname == "Trainer.train"
    assert len(counted["steady step"].entered) < len(counted["first step"].entered) / 5

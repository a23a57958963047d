"""`penstock models`: the list, the layers of one network, and what it says of mistakes."""

import json
import re
import sys

import pytest
from rich.console import Console

from penstock import _text_tables, commands, models
from penstock.models.advice import ADVICE, find_advice


def lines_of(capsys, *words):
    assert commands.main(["models", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_list_has_every_network_with_its_size(capsys):
    head, *rows = lines_of(capsys)
    assert head.split() == ["name", "image", "parameters", "GMAC", "preprocessing", "classes"]
    columns = {row.split()[0]: row.split()[1:] for row in rows[: rows.index("")]}
    assert columns["lenet"] == ["28", "3,274,634", "0.014", "lenet", "10"]
    assert columns["nasnet_large"] == ["331", "93,320,934", "23.783", "inception", "1001"]
    assert list(columns) == sorted(columns)


def test_list_says_which_of_a_family_to_take(capsys):
    rows = lines_of(capsys, "*resnet*50")
    (advice,) = (row for row in rows if row.startswith("  ResNet-50: "))
    assert advice.startswith("  ResNet-50: take resnet50, which is what others mean by the name;")
    # What the advice names is in the list.
    (one,) = (row for row in lines_of(capsys, "resnet50") if row.startswith("ResNet-50: "))
    assert one == advice.strip()
    assert not [row for row in rows if row.startswith("  Inception")]


def test_every_network_of_the_library_belongs_to_a_family_and_advice_names_those_there_are():
    library = [name for name in models.names() if models.get(name).source]
    assert [name for name in library if not find_advice([name])] == []
    named = {word for advice in ADVICE for word in re.findall(r"\w*[a-z]_?\d\w*", advice.text)}
    assert "keras_resnet_v2_50" in named
    assert named - {"v1"} <= set(library)


def test_layers_of_a_network_have_outputs_shapes_and_counts(capsys):
    rows = lines_of(capsys, "lenet")
    assert rows[0].startswith("lenet: TF-Slim's lenet. Images 28 x 28 x 1, 10 classes")
    assert rows[1] == "Settings: dropout 0.5, weight_decay 0.0."
    assert "conv1/conv  [28, 28, 32]  w [5, 5, 1, 32], b [32]          832   0.63" in rows
    assert rows[-1] == (
        "3,274,634 trained in 8 arrays, 0 in running statistics, 0.014 GMAC for one image"
    )


def test_layers_are_those_of_another_size_and_number_of_classes(capsys):
    text = "\n".join(lines_of(capsys, "lenet", "--image_size=32", "--num_classes=5"))
    assert "Images 32 x 32 x 1, 5 classes" in text
    assert "[16, 16, 64]" in text
    assert "w [1024, 5], b [5]" in text


def test_batch_norm_shows_its_vectors_together(capsys):
    rows = lines_of(capsys, "mobilenet_v1_025", "--image_size=32")
    norms = [row for row in rows if "/norm" in row]
    assert " ".join(norms[0].split()[1:]) == "scale, bias, mean, variance [8] 16"


def test_json_of_the_list(capsys):
    networks = json.loads("\n".join(lines_of(capsys, "--json")))
    lenet = next(network for network in networks if network["name"] == "lenet")
    assert lenet["num_params"] == 3_274_634
    assert lenet["gmacs"] == lenet["num_macs"] / 1e9
    assert (lenet["image_size"], lenet["num_classes_published"]) == (28, 10)
    assert lenet["settings"]["dropout"] == 0.5


def test_json_of_one_network_has_its_layers(capsys):
    lenet = json.loads("\n".join(lines_of(capsys, "lenet", "--json", "--image_size=32")))
    assert lenet["image_size"] == 32
    paths = ["conv1/conv", "conv2/conv", "fc3/fc", "fc4/fc"]
    assert [layer["path"] for layer in lenet["layers"]] == paths
    assert lenet["layers"][0]["shapes"] == {"w": [5, 5, 1, 32], "b": [32]}
    assert sum(layer["num_macs"] for layer in lenet["layers"]) == lenet["num_macs"]


def test_networks_of_a_module_of_ones_own_are_counted(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "networks_of_my_own.py").write_text(
        "from penstock import layers, models\n"
        "@models.register('of_my_own', default_image_size=4, num_classes=3)\n"
        "def of_my_own(images, num_classes):\n"
        "    return layers.fc(layers.flatten(images), num_classes or 2), {}\n"
    )
    rows = lines_of(capsys, "of_my*", "--plugin=networks_of_my_own")
    assert rows[1].split() == ["of_my_own", "4", "147", "0.000", "inception", "3"]
    shown = lines_of(capsys, "of_my_own")
    assert shown[0].startswith("of_my_own: registered. Images 4 x 4 x 3, 3 classes")
    assert shown[-3].split()[:2] == ["fc_0", "[3]"]


@pytest.mark.parametrize("columns", [80, 120])
def test_table_in_a_terminal_breaks_paths_after_slashes_and_no_number(capsys, monkeypatch, columns):
    monkeypatch.setattr(
        "rich.console.Console",
        lambda: Console(force_terminal=True, width=columns, color_system=None),
    )
    rows = [
        ("Mixed_5b/Branch_0/Conv2d_0a_1x1/norm", "[35, 35, 64]", "[b], means [1024]", "1,234,567"),
        ("a" * 100, "", "w [1, 1, 2048, 1536], b [1536]", "3,145,728"),
    ]
    _text_tables.print_table(("layer", "output", "shapes", "parameters"), rows[:1], right={3})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "[b]" in "".join(lines)  # not taken for markup
    if columns == 120:
        assert lines[1].split()[0] == rows[0][0]
    else:
        parts = [line.split()[0] for line in lines[1:]]
        assert parts == ["Mixed_5b/Branch_0/Conv2d_0a_1x1/", "norm"]
    # A word that fits nowhere is folded.
    _text_tables.print_table(("layer", "output", "shapes", "parameters"), rows, right={3})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "3,145,728" in "\n".join(lines)
    numbers = re.findall(r"\d+", " ".join(rows[1][2:]))
    assert set(numbers) <= set(re.findall(r"\d+", "\n".join(lines)))


def test_pattern_chooses(capsys):
    rows = lines_of(capsys, "le*")
    assert [row.split()[0] for row in rows[1:2]] == ["lenet"]
    assert "1 network. " in " ".join(rows)

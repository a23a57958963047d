"""Weight files as people have them: each kind gives the same parameters, and says its choices."""

import functools
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock import layers, models
from penstock._errors import ParameterError
from penstock._weight_files import WeightFile
from penstock.models._weight_layout import lay_out
from penstock.models.weights import find_fitting_models, note_guess
from tests.weight_files.torch_files import (
    called,
    floats,
    group,
    listed,
    mapping,
    name,
    number,
    pickled,
    storage,
    tensor,
    text,
    vector,
    write_legacy,
    write_zip,
)

Arrays = dict[str, np.ndarray]
NAME = "of_kinds"
NAMES = {
    "table": "table",
    "hidden/w": "hidden.weight",
    "hidden/b": "hidden.bias",
    "head/w": "head.weight",
    "head/b": "head.bias",
}


@pytest.fixture(scope="module", autouse=True)
def network():
    """Register a network with a table, and square dense weights, and its names in torch."""
    from penstock.models import _registry, _weight_names

    @models.register(NAME, default_image_size=2, num_channels=1, preprocessing="lenet")
    def of_kinds(images, num_classes):
        table = layers.create_parameter([4, 4], name="table")
        hidden = layers.fc(layers.flatten(images) @ table, size=4, name="hidden")
        return layers.fc(hidden, num_classes or 3, name="head"), {}

    models.register_weight_map(NAME, "torch")(lambda: NAMES)
    yield
    del _registry._MODELS[NAME]
    del _weight_names._USER_MAPS[NAME, "torch"]


def in_torch() -> Arrays:
    """Return a state dict; its square arrays are not symmetric."""
    rng = np.random.default_rng(0)
    shapes = {"table": (4, 4), "hidden.weight": (4, 4), "hidden.bias": (4,)}
    shapes |= {"head.weight": (3, 4), "head.bias": (3,)}
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def prefixed(prefix: str, arrays: Arrays | None = None) -> Arrays:
    return {prefix + key: value for key, value in (arrays or in_torch()).items()}


def averaged() -> Arrays:
    """Return what is not the weights: a reader that takes the wrong dict is seen."""
    return {key: value + 1 for key, value in in_torch().items()}


class Pickle:
    """Instructions of a pickle with tensors, and the storages that they refer to."""

    def __init__(self) -> None:
        self.storages: dict[str, bytes] = {}

    def tensors(self, arrays: Arrays) -> bytes:
        return mapping({key: self.tensor(value) for key, value in arrays.items()})

    def tensor(self, array: np.ndarray) -> bytes:
        key = str(len(self.storages))
        self.storages[key] = array.astype("<f4").tobytes()
        strides = [stride // array.itemsize for stride in array.strides]
        size, stride = (group(*map(number, numbers)) for numbers in (array.shape, strides))
        return tensor(storage("FloatStorage", key, array.size), 0, size, stride)

    def write(self, path: Path, value: bytes, *, is_legacy: bool = False) -> Path:
        if is_legacy:
            return write_legacy(path, pickled(value), self.storages, 4)
        return write_zip(path, pickled(value), self.storages)


def made(build):
    """Return a writer of a zip whose value `build` makes with a `Pickle`."""

    def write(folder: Path) -> Path:
        file = Pickle()
        return file.write(folder / "weights.pth.tar", build(file))

    return write


def legacy(folder: Path) -> Path:
    file = Pickle()
    # Before torch 1.6 a reference to a storage ends with the view of it.
    arrays = {key: file.tensor(value) for key, value in in_torch().items()}
    value = mapping(arrays).replace(b"tQ", b"NtQ")
    return file.write(folder / "weights.pth", value, is_legacy=True)


def namespace(**values: bytes) -> bytes:
    return called(name("argparse", "Namespace")) + mapping(values) + b"b"


def path_of(value: str) -> bytes:
    return called(name("pathlib", "PosixPath"), text(value))


def numpy_scalar() -> bytes:
    dtype = called(name("numpy", "dtype"), text("f8"), number(0), number(1))
    content = called(name("_codecs", "encode"), text("\0" * 8), text("latin1"))
    return called(name("numpy.core.multiarray", "scalar"), dtype, content)


def mixed(file: Pickle) -> bytes:
    """Return a checkpoint with everything that training scripts put beside the weights."""
    beside = {
        "args": namespace(lr=number(1), output_dir=path_of("runs"), model=text("resnet50")),
        "best": numpy_scalar(),
        "history": called(name("collections", "defaultdict"), name("builtins", "list")),
        "dtype": name("torch", "float16"),
        "best_acc1": file.tensor(np.ones(1, np.float32)),
        "rng_state": vector("rng", 2),
        "epoch": number(3),
        "steps": listed(number(1), number(2)),
    }
    file.storages["rng"] = floats(1, 2)
    return mapping({**beside, "model": file.tensors(in_torch())})


def safetensors(folder: Path) -> Path:
    save_file(in_torch(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def in_parts(folder: Path) -> Path:
    arrays, parts = in_torch(), {}
    first = ["table", "head.bias"]
    for index, keys in enumerate((first, [key for key in arrays if key not in first])):
        part = f"model-{index + 1:05}-of-00002.safetensors"
        save_file({key: arrays[key] for key in keys}, folder / part)
        parts |= dict.fromkeys(keys, part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    return index


def as_npz(arrays: Arrays):
    def write(folder: Path) -> Path:
        np.savez(folder / "weights.npz", **arrays)
        return folder / "weights.npz"

    return write


def paddle(folder: Path) -> Path:
    """Write arrays as Paddle does: dense weights lie as they do here."""
    dense = ("hidden.weight", "head.weight")
    value = {k: v.T.copy() if k in dense else v for k, v in in_torch().items()}
    value["StructuredToParameterName@@"] = dict.fromkeys(value, "linear_0.w_0")
    (folder / "weights.pdparams").write_bytes(pickle.dumps(value, protocol=2))
    return folder / "weights.pdparams"


def own_names() -> Arrays:
    there = in_torch()
    ours = {path: there[theirs] for path, theirs in NAMES.items()}
    return {path: v.T if path.endswith("/w") else v for path, v in ours.items()}


def parts_of_mmpretrain() -> Arrays:
    sides = {"table": "backbone.", "hidden": "backbone.", "head": "head."}
    return {sides[key.partition(".")[0]] + key: value for key, value in in_torch().items()}


KINDS = {
    "zip": (made(lambda file: file.tensors(in_torch())), None),
    "legacy": (legacy, None),
    "safetensors": (safetensors, None),
    "index of parts": (in_parts, "read from 2 parts"),
    "folder of parts": (lambda f: in_parts(f).parent, "read from 2 parts"),
    "npz of torch": (as_npz(in_torch()), None),
    "npz of ours": (as_npz(own_names()), None),
    "paddle": (paddle, None),
    "everything beside them": (made(mixed), "left out 'args', 'best', 'history', 'dtype', 'best_a"),
    "state_dict": (made(lambda f: mapping({"state_dict": f.tensors(in_torch())})), "'state_dict'"),
    "lightning": (
        made(lambda f: mapping({"state_dict": f.tensors(prefixed("model.")), "epoch": number(1)})),
        "took 'model.' off the names",
    ),
    "net.": (made(lambda f: f.tensors(prefixed("net."))), "took 'net.' off the names"),
    "backbone and head": (
        made(lambda f: mapping({"state_dict": f.tensors(parts_of_mmpretrain())})),
        "took 'backbone.', 'head.' off the names",
    ),
    "DataParallel": (made(lambda f: f.tensors(prefixed("module."))), "cut 'module.' off"),
    "compiled": (made(lambda f: f.tensors(prefixed("_orig_mod."))), "cut '_orig_mod.' off"),
    **{
        key: (
            made(
                lambda f, key=key: mapping(
                    {"model": f.tensors(averaged()), key: f.tensors(in_torch())}
                )
            ),
            f"{key!r} is a moving average of the weights",
        )
        for key in ("model_ema", "state_dict_ema", "ema")
    },
    "AveragedModel": (
        made(lambda f: f.tensors({"n_averaged": np.ones((), np.float32), **prefixed("module.")})),
        "made by torch's AveragedModel",
    ),
}


@pytest.mark.quick("zip", "paddle", "lightning", "everything beside them", "backbone and head")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_parameters(kind, tmp_path):
    write, note = KINDS[kind]
    weights = models.load_weights(NAME, write(tmp_path))
    expected = own_names()
    assert set(weights) == set(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)
    assert note is None or any(note in line for line in weights.notes), weights.notes


def test_raw_weights_are_taken_where_they_are_asked_for(tmp_path):
    write, _ = KINDS["model_ema"]
    weights = models.load_weights(NAME, write(tmp_path), moving_averages=False)
    np.testing.assert_array_equal(weights["table"], averaged()["table"])


def test_values_that_are_not_finite_are_noted(tmp_path):
    arrays = in_torch()
    arrays["head.bias"][1] = np.nan
    save_file(arrays, tmp_path / "a.safetensors")
    notes = models.load_weights(NAME, tmp_path / "a.safetensors").notes
    assert any(note.startswith("NOT FINITE: 'head/b' have nan") for note in notes)


def test_map_joins_and_cuts_and_takes_what_is_laid_out_as_here(tmp_path):
    arrays = in_torch()
    joint = np.concatenate([arrays["table"], arrays["hidden.weight"].T], axis=1)
    halves = {"head.a": arrays["head.weight"][:1], "head.b": arrays["head.weight"][1:]}
    biases = {"hidden.bias": arrays["hidden.bias"], "head.bias": arrays["head.bias"]}
    save_file({"joint": joint, **halves, **biases}, tmp_path / "a.safetensors")
    entry = models.Entry

    @models.register_weight_map(NAME, "torch")
    def names():
        return {
            "table": entry("joint", part=(0, 2), axis=1, transpose=False),
            "hidden/w": entry("joint", part=(1, 2), axis=1, transpose=False),
            "hidden/b": "hidden.bias",
            "head/w": entry(["head.a", "head.b"]),
            "head/b": "head.bias",
        }

    weights = models.load_weights(NAME, tmp_path / "a.safetensors")
    for path, array in own_names().items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


def test_file_of_another_network_says_what_it_is_in_three_lines(tmp_path):
    bottlenecks = {f"layer1.{n}.conv1.weight": np.zeros([64, 64, 3, 3], np.float32) for n in (0, 1)}
    arrays = {**in_torch(), **bottlenecks, "table": np.zeros((5, 4), np.float32)}
    del arrays["hidden.bias"]
    save_file(arrays, tmp_path / "rn18.safetensors")
    with pytest.raises(ParameterError) as caught:
        models.load_weights(NAME, tmp_path / "rn18.safetensors")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("not fit of_kinds: 1 missing, 1 of another shape, 2 left over.")
    assert (
        "missing: hidden.bias, which is hidden/b [4] here; mismatched: table got [5, 4]"
        in (lines[1])
    )
    assert "left over: layer1.0" in lines[1]
    assert "It has 6 arrays of torchvision or timm, such as head.bias [3]." in lines[2]


def test_file_of_a_network_that_the_library_has_names_it(tmp_path):
    from penstock.models._weight_maps import resnet

    names = resnet.torch_v1_5("resnet50")
    arrays = {theirs: np.zeros(1, np.float32) for theirs in names.values()}
    save_file(arrays, tmp_path / "r50.safetensors")
    with pytest.raises(ParameterError, match=r"Its names are those of 'resnet50', 'resnext50'\."):
        models.load_weights(NAME, tmp_path / "r50.safetensors")


@pytest.mark.parametrize(
    ("format", "names", "expected"),
    [
        ("tf_slim", ["InceptionV3/Conv2d_1a_3x3/weights", "global_step"], ["inception_v3"]),
        ("numpy", ["LeNet/conv1/weights"], ["lenet"]),
        ("tf_slim", ["resnet_v1_50/conv1/weights"], ["resnet_v1_50"]),
        ("paddle", None, ["resnet50", "resnext50"]),
        # With the scales that the network does not have.
        ("torch", "inception_v4", ["inception_v4"]),
    ],
)
def test_networks_are_found_by_the_names_in_any_kind_of_file(format, names, expected):
    from penstock.models._weight_maps import inception, resnet

    if names is None:
        there = resnet.torch_v1_5("resnet50").values()
        endings = (".running_mean", "._mean"), (".running_var", "._variance")
        names = [functools.reduce(lambda n, pair: n.replace(*pair), endings, n) for n in there]
    elif names == "inception_v4":
        names = [*inception.torch_v4(names).values(), *inception.torch_ones(names)]
    arrays = dict.fromkeys(names, np.zeros(1))
    assert find_fitting_models(WeightFile(path=Path("a"), format=format, arrays=arrays)) == expected


@pytest.mark.parametrize("has_digest", [False, True])
def test_preprocessing_that_nothing_says_is_a_guess(has_digest, tmp_path):
    chosen = models.get("resnet50")
    path = tmp_path / "resnet50.pth"
    path.write_bytes(b"any")
    if has_digest:
        path = path.rename(tmp_path / f"resnet50-{hashlib.sha256(b'any').hexdigest()[:8]}.pth")
    notes = note_guess(chosen, WeightFile(path=path, format="torch", arrays={}))
    assert any("is a guess" in note for note in notes) != has_digest


@pytest.mark.parametrize("layout", ["tensorflow", "torch", "paddle"])
def test_scalar_of_a_file_stays_a_scalar(layout):
    assert lay_out(np.float64(3), "temperature", (), layout).shape == ()

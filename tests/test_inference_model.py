"""Model files: what is written runs without its code, and answers what the inferencer answers."""

import concurrent.futures
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import penstock as ps
from penstock import _model_file, layers, models, preprocessing
from penstock._image_resizing import encode_png
from penstock.inference_model import choose_best, keep_compiled
from tests.models.test_battery import size_of
from tests.networks import assert_same_bits, class_data, classifier, classifier_program, one_device

RANDOM = np.random.default_rng(0)


def read_words(size=8):
    return layers.embedding(layers.data("words", [1], "int32", lod_level=1), size=[50, size])


def images():
    image = layers.data("image", [28, 28, 1])
    h = layers.simple_img_conv_pool(
        image, num_filters=4, filter_size=5, pool_size=2, pool_stride=2, act="relu"
    )
    return layers.fc(layers.batch_norm(h), 10, act="softmax")


def draw_images():
    noise = layers.fc(layers.data("noise", [8]), 7 * 7 * 4, act="relu")
    square = noise.reshape(-1, 7, 7, 4)
    return layers.conv2d_transpose(square, num_filters=1, filter_size=4, stride=2, act="tanh")


def classify_words():
    hidden, _ = layers.dynamic_lstm(layers.fc(read_words(), 32), size=32)
    pooled = [layers.sequence_pool(hidden, kind) for kind in ("max", "average", "last")]
    return layers.fc(pooled, 2, act="softmax")


def tag_words():
    scores = layers.fc(layers.dynamic_gru(layers.fc(read_words(), 24), size=8), 5)
    scores = scores * layers.create_parameter([], attr=jax.nn.initializers.ones)
    path = layers.crf_decoding(scores, param_attr=layers.ParamAttr(name="transition"))
    return {"path": path, "scores": (scores, [layers.sequence_softmax(layers.fc(scores, 1))])}


def attend():
    x = layers.transformer_encoder(read_words(), num_layers=2, num_heads=2, ffn_size=16)
    return layers.sequence_first_step(x)


def write():
    first = layers.data("first", [1], "int32")

    def step(words, caches):
        one_each = ps.Sequence(words[:, None, None], jnp.ones_like(words))
        x = layers.embedding(one_each, [20, 16])
        x, caches = layers.transformer_decoder(
            x, num_layers=1, num_heads=2, ffn_size=32, rotary=True, caches=caches
        )
        return layers.fc(x, 20).values[:, 0], caches

    step = layers.scope("decoder")(step)
    caches = (layers.init_cache(first.shape[0], 12, num_kv_heads=2, head_dim=8),)
    options = {"end_id": 0, "max_length": 12}
    return (
        layers.greedy_decode(step, caches, first, **options),
        layers.sample_decode(step, caches, first, **options, temperature=0.7),
        layers.beam_decode(step, caches, first, **options, beam_size=3).ids,
    )


def compare_examples():
    x = layers.fc(layers.data("x", [4]), 3)
    return {
        "centred": x - jnp.mean(x, axis=0, keepdims=True),
        "largest": jnp.max(x),
        "x": nn.Dense(2)(x),
    }


def make_feed(count):
    words = [RANDOM.integers(0, 50, n % 20 + 1) for n in range(count)]
    return {
        "image": RANDOM.integers(0, 256, (count, 28, 28, 1)).astype(np.uint8),
        "noise": RANDOM.normal(size=(count, 8)).astype(np.float32),
        "words": words,
        "first": RANDOM.integers(0, 20, (count, 1)),
        "x": RANDOM.normal(size=(count, 4)),
    }


PROGRAMS = {
    program.__name__: program
    for program in (
        *(images, draw_images, classify_words, tag_words, attend, write, compare_examples),
    )
}


def save(tmp_path, infer_func, **options):
    """Return a trainer of an infer function, and the path of its file."""

    def train_program():
        leaves = jax.tree.leaves(infer_func())
        parts = [layers.mean(jnp.asarray(x, jnp.float32)) for x in leaves]
        return sum(parts) + layers.create_parameter([1], "float32", name="own")[0]

    trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_func, place=one_device())
    path = tmp_path / "model.penstock"
    trainer.save_inference_model(path, **options)
    return trainer, path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return `save` for files that tests only read: each function is traced and exported once."""
    return functools.cache(lambda infer_func: save(tmp_path_factory.mktemp("saved"), infer_func))


@pytest.mark.quick("images", "classify_words")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_answers_what_the_inferencer_answers(name, saved):
    trainer, path = saved(PROGRAMS[name])
    model = ps.InferenceModel.load(path, place=one_device())
    for count in (1, 3, 5):
        feed = make_feed(count)
        answer, expected = model.infer(feed), trainer.infer(feed)
        assert jax.tree.structure(answer) == jax.tree.structure(expected)
        assert_same_bits(answer, expected)


def test_programs_of_other_platforms_are_not_written_for_cpus(saved):
    _, path = saved(images)
    programs = _model_file.read_manifest(path).programs
    assert [p.platforms for p in programs] == [("cpu",), ("cuda", "tpu")]
    assert programs[0].options
    assert not programs[1].options


# The others have no operation, stride, padding, axis or rank that is not in one of these.
SMALLEST = [
    *("lenet", "cifarnet", "alexnet_v2", "inception_v1", "inception_v2", "inception_v3"),
    *("resnet_v2_50", "mobilenet_v2_035", "mobilenet_v3_small", "pnasnet_mobile"),
    *("resnet_cifar10", "vgg_bn_drop"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_network_of_the_library_answers_the_same_from_its_file(name, tmp_path):
    size = size_of(name)
    network = models.classifier(name, 10, image_size=size)
    trainer = ps.Trainer(
        network.train_program,
        optax.sgd(0.1),
        infer_func=network.infer_program,
        place=one_device(),
    )
    path = tmp_path / "model.penstock"
    trainer.save_inference_model(path)
    model = ps.InferenceModel.load(path, place=one_device())
    image = RANDOM.integers(0, 256, (3, size, size, network.model.num_channels))
    feed = {"image": image.astype(np.float32)}
    assert_same_bits(model.infer(feed), trainer.infer(feed))


READER = """
    import json, sys, zipfile
    import jax, numpy as np
    from jax import export
    from safetensors.numpy import load

    with zipfile.ZipFile(sys.argv[1]) as file:
        manifest = json.loads(file.read("manifest.json"))
        weights = load(file.read("weights.safetensors"))
        program = next(p for p in manifest["programs"] if "cpu" in p["platforms"])
        exported = export.deserialize(bytearray(file.read(program["file"])))
    call = jax.jit(exported.call, compiler_options=program["options"])
    image = np.load(sys.argv[2])
    (probabilities,) = call(weights, {"image": image.astype(np.float32)})
    np.save(sys.argv[3], probabilities)
    assert "penstock" not in sys.modules

    import penstock as ps
    model = ps.InferenceModel.load(sys.argv[1])
    assert np.array_equal(model.infer({"image": image}), probabilities)
    assert not {"flax", "optax", "orbax", "cv2"} & set(sys.modules)
"""


def run(code, *words):
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, words)], check=True)


def test_a_file_is_read_without_penstock_and_loaded_without_flax_and_optax(saved, tmp_path):
    trainer, path = saved(images)
    image = make_feed(4)["image"]
    np.save(tmp_path / "in.npy", image)
    run(READER, path, tmp_path / "in.npy", tmp_path / "out.npy")
    assert_same_bits(np.load(tmp_path / "out.npy"), trainer.infer({"image": image}))


def test_classes_of_pictures_are_named_as_their_preprocessing_asks(tmp_path):
    chosen = preprocessing.get("lenet")
    network = models.classifier("lenet", 10, image_size=28, preprocess=chosen.device)
    trainer = ps.Trainer(
        network.train_program, optax.sgd(0.1), infer_func=network.infer_program, place=one_device()
    )
    trainer.about = {"preprocessing": preprocessing.describe(chosen), "stored_shape": [8, 8, 1]}
    names = [f"digit {n}" for n in range(10)]
    trainer.save_inference_model(tmp_path / "digits.penstock", names=names)
    model = ps.InferenceModel.load(tmp_path / "digits.penstock", place=one_device())
    assert [f.kind for f in model.inputs] == ["image"]
    picture = RANDOM.integers(0, 256, (8, 8, 1)).astype(np.uint8)
    (tmp_path / "one.png").write_bytes(encode_png(picture))
    answers = model.predict([encode_png(picture), tmp_path / "one.png"], top_k=3)
    cropped = chosen.host(picture, 28, 28, is_training=False)
    row = trainer.infer({"image": np.stack([cropped, cropped])})[0]
    best = np.argsort(-row)[:3]
    expected = [{"name": names[n], "probability": pytest.approx(row[n], abs=1e-6)} for n in best]
    assert answers == [expected, expected]
    with pytest.raises(ps.FeedError, match="the image got"):
        model.predict([b"no picture"])
    with pytest.raises(ps.FeedError, match="got ndarray, expected images, as bytes or paths"):
        model.predict(np.stack([cropped, cropped]))


def test_sentences_become_ids_of_a_vocabulary(tmp_path):
    def judge():
        return layers.fc(layers.sequence_pool(read_words(), "sum"), 2, act="softmax")

    vocabulary = {"<unk>": 0, "the": 1, "cat's": 2}
    trainer, path = save(tmp_path, judge, names=["bad", "good"], vocabulary=vocabulary)
    model = ps.InferenceModel.load(path, place=one_device())
    answer = model.predict(["The cat's, hat", ""])[0]
    row = trainer.infer({"words": [np.array([1, 2, 0])]})[0]
    assert {entry["name"] for entry in answer} == {"bad", "good"}
    assert max(entry["probability"] for entry in answer) == pytest.approx(row.max(), abs=1e-6)


def test_the_weights_of_a_file_are_parameters(saved, tmp_path):
    trainer, path = saved(draw_images)
    inferencer = ps.Inferencer(draw_images, path, place=one_device())
    feed = make_feed(2)
    assert_same_bits(inferencer.infer(feed), trainer.infer(feed))
    trainer.save_inference_model(tmp_path / "small", weights="int8")
    with pytest.raises(ps.ParameterError, match="weights of 'int8', expected 'float32'"):
        ps.Inferencer(draw_images, tmp_path / "small")


def test_whether_rows_may_be_padded_is_found_for_the_parameters_that_are_written(tmp_path):
    def program():
        x = layers.data("x", [2])
        weight = layers.create_parameter([], attr=layers.ParamAttr(name="weight"))
        return x + jnp.where(weight > 0, jnp.max(x, axis=0, keepdims=True), 0.0)

    def train_program():
        return layers.mean(program())

    trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=program, place=one_device())
    for value in (0.0, 1.0):
        trainer.parameters["weight"] = np.float32(value)
        # Of three examples, whose answers are looked at once.
        list(trainer.predict([{"x": np.ones([3, 2], np.float32)}]))
        trainer.save_inference_model(tmp_path / "a.penstock")
        model = ps.InferenceModel.load(tmp_path / "a.penstock")
        assert model.manifest.takes_padding is (value == 0)


def test_another_function_of_the_parameters_is_written(tmp_path):
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), place=one_device())
    trainer.save_inference_model(tmp_path / "a", lambda: (classifier() * 2,), names=list("abc"))
    answer = ps.InferenceModel.load(tmp_path / "a").infer({"x": class_data(5)["x"]})
    assert isinstance(answer, tuple)
    np.testing.assert_allclose(answer[0].sum(axis=1), 2, rtol=1e-5)
    with pytest.raises(ps.ProgramError, match="got no infer_func"):
        trainer.save_inference_model(tmp_path / "b")


@pytest.mark.quick("int8")
@pytest.mark.parametrize(("weights", "size"), [("bfloat16", 0.55), ("int8", 0.3)])
def test_small_weights_are_measured_against_float32(weights, size, tmp_path):
    def wide():
        return layers.fc(layers.fc(layers.data("x", [64]), 256, act="relu"), 4, act="softmax")

    def train():
        label = layers.data("label", [1], "int32")
        return layers.mean(layers.cross_entropy(wide(), label))

    trainer = ps.Trainer(train, optax.sgd(0.1), infer_func=wide, place=one_device())
    data = {"x": RANDOM.normal(size=(50, 64)), "label": RANDOM.integers(0, 4, (50, 1))}
    trainer.save_inference_model(tmp_path / "whole")
    trainer.save_inference_model(tmp_path / "small", weights=weights, measure_on=[data])
    sizes = []
    for name in ("whole", "small"):
        with zipfile.ZipFile(tmp_path / name) as file:
            sizes.append(file.getinfo("weights.safetensors").file_size)
    assert sizes[1] < size * sizes[0]
    model = ps.InferenceModel.load(tmp_path / "small", place=one_device())
    measured, expected = model.manifest.about["measured"], trainer.infer(data)
    difference = np.max(np.abs(model.infer(data) - expected))
    assert 0 < measured["largest_difference"] == pytest.approx(difference, rel=1e-3)
    assert difference < 0.02
    accuracy = np.mean(expected.argmax(-1) == data["label"].ravel())
    assert measured["accuracy_float32"] == pytest.approx(accuracy)
    assert measured["examples"] == 50


@pytest.mark.slow
def test_a_process_that_finds_the_cache_compiles_nothing(tmp_path, monkeypatch):
    paths = []
    for name, infer_func in (("first", draw_images), ("second", lambda: draw_images() * 2)):
        (tmp_path / name).mkdir()
        paths.append(save(tmp_path / name, infer_func)[1])
    folders = [keep_compiled(path, [2]) for path in paths]
    assert all(map(os.listdir, folders))
    code = """
        import sys
        import jax, numpy as np
        import penstock as ps
        names = []
        jax.monitoring.register_event_listener(lambda name, **_: names.append(name))
        for path in sys.argv[1:]:
            model = ps.InferenceModel.load(path)
            names.clear()
            model.infer({"noise": np.zeros((2, 8), np.float32)})
            assert "/jax/compilation_cache/cache_hits" in names, names
            assert "/jax/compilation_cache/cache_misses" not in names, names
        assert jax.config.jax_compilation_cache_dir is None, "what else is compiled goes there too"
    """
    for folder in folders:
        folder.chmod(0o500)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")  # that of the tests would come first
    run(code, *paths)
    for folder in folders:
        folder.chmod(0o700)


def test_threads_ask_one_model_at_a_time_and_at_once(saved):
    trainer, path = saved(draw_images)
    model = ps.InferenceModel.load(path, place=one_device())
    feeds = [{"noise": RANDOM.normal(size=(n, 8))} for n in (1, 2, 3, 4, 5, 64, 1000) * 5]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(model.infer, feeds))
    for feed, answer in zip(feeds, answers, strict=True):
        assert_same_bits(answer, trainer.infer(feed))


@pytest.mark.parametrize("trials", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused(trials, saved, tmp_path):
    path, whole = tmp_path / "model.penstock", saved(draw_images)[1].read_bytes()
    random = np.random.default_rng(1)
    for trial in range(trials):
        data = bytearray(whole)
        if trial % 3 == 0:
            del data[random.integers(len(data)) :]
        elif trial % 3 == 1:
            data[random.integers(len(data))] ^= int(random.integers(1, 256))
        else:
            start = random.integers(len(data))
            data[start : start + 20] = random.bytes(20)
        path.write_bytes(data)
        try:
            model = _model_file.read(path)
        except ps.ModelFileError:
            continue
        # What no reader looks at: a date, a flag of another system.
        path.write_bytes(whole)
        kept = _model_file.read(path)
        assert dataclasses.asdict(model[0]) == dataclasses.asdict(kept[0])
        assert_same_bits(model[1], kept[1])
        assert model[2] == kept[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "does not say"),
        ({"version": 9}, "version 9, expected 1"),
        ({"inputs": 3}, "damaged"),
        ({"outline": {"dict": {}}}, "do not fit together"),
        ({"programs": []}, "do not fit together"),
        ({"host": 3}, "no object"),
        ({"classes": [3]}, "no text"),
    ],
)
@pytest.mark.quick("change1", "change4")
def test_a_lying_manifest_is_refused(change, message, saved, tmp_path):
    path = tmp_path / "model.penstock"
    with zipfile.ZipFile(saved(draw_images)[1]) as file:
        members = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(members["manifest.json"]) | change
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    with pytest.raises(ps.ModelFileError, match=message):
        ps.InferenceModel.load(path)


def test_what_is_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a file as"):
        ps.InferenceModel.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="which is a folder"):
        ps.InferenceModel.load(tmp_path)
    (tmp_path / "text").write_text("words")
    with pytest.raises(ps.ModelFileError, match="not a zip file"):
        ps.InferenceModel.load(tmp_path / "text")


def test_a_model_of_64_bits_is_loaded_in_x64_mode_alone(tmp_path):
    ids = np.array([[2**40]])
    with jax.enable_x64(True):
        _, path = save(tmp_path, lambda: layers.data("ids", [1], "int64") * 2)
        assert ps.InferenceModel.load(path).infer({"ids": ids}) == [[2**41]]
    with pytest.raises(ps.ModelFileError, match="takes 'int64', expected one that takes 'int32'"):
        ps.InferenceModel.load(path)


def test_a_model_runs_on_its_place_whatever_it_has_and_gets(tmp_path):
    _, path = save(tmp_path, lambda: layers.data("x", [2]) * 2)
    first, *_, last = jax.devices("cpu")
    assert first != last
    model = ps.InferenceModel.load(path, place=last)
    for x in (np.ones([1, 2], np.float32), jax.device_put(np.ones([1, 2], np.float32), first)):
        arrays, batch = model._place({"x": x})
        (y,) = model._compile(arrays, batch)(model._weights, arrays)
        assert y.devices() == {last}


@pytest.mark.parametrize("scores", [np.array([0, 200, 3], np.uint8), np.array([False, True])])
def test_the_best_class_of_bytes_is_that_of_the_largest(scores):
    assert choose_best(scores, ["a", "b", "c"], 1)[0]["name"] == "b"


def test_a_file_for_other_devices_is_refused(saved, tmp_path):
    path = tmp_path / "model.penstock"
    saved(draw_images)[0].save_inference_model(path, platforms=["tpu"])
    with pytest.raises(ps.ModelFileError, match="expected one of 'tpu'"):
        ps.InferenceModel.load(path)


def test_what_a_file_cannot_hold_is_refused(saved, tmp_path):
    def called_back():
        x = layers.data("x", [4])
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((x.shape[0], 4), x.dtype), x)

    line = called_back.__code__.co_firstlineno + 2
    with pytest.raises(ps.ProgramError, match=rf"exported at {re.escape(__file__)}:{line} \(Not"):
        save(tmp_path, called_back)
    write_file, path = saved(images)[0].save_inference_model, tmp_path / "model.penstock"
    with pytest.raises(ValueError, match="names got 2 names, expected a list of 10 names"):
        write_file(path, names=["a", "b"])
    with pytest.raises(ValueError, match="names got '0123456789', expected a list of 10"):
        write_file(path, names="0123456789")
    for platforms in ("cpu", [], ["gpu"]):
        with pytest.raises(ValueError, match=r"platforms got .*, expected some of 'cpu'"):
            write_file(path, platforms=platforms)
    with pytest.raises(ValueError, match="expected one input of ids"):
        write_file(path, vocabulary={"a": 1})


REFUSED = {
    "key": (lambda x: {0: x}, "a dict with the key 0, expected text"),
    "no name": (lambda x: {"": x}, "an output of the name '', expected one that is not empty"),
    "name": (lambda x: {"a/b": x, "a": {"b": x}}, "two outputs of the name 'a/b', expected"),
    "dtype": (lambda x: {"z": x.astype(jnp.int4)}, "the dtype int4 for the output 'z', expected"),
    "size": (lambda x: x.reshape(len(x), -1), "Write x.shape\\[0\\] for len\\(x\\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_outputs_that_a_file_cannot_hold_are_refused(name, tmp_path):
    function, message = REFUSED[name]
    with pytest.raises(ps.ProgramError, match=message):
        save(tmp_path, lambda: function(layers.data("x", [4])))


def test_a_feed_that_does_not_fit_is_refused_as_in_training(saved):
    _, path = saved(classify_words)
    model = ps.InferenceModel.load(path)
    with pytest.raises(ps.FeedError, match="ids from 0 to 49"):
        model.infer({"words": [[50]]})
    with pytest.raises(ps.FeedError, match="expected also 'words'"):
        model.infer({"word": [[1]]})
    for examples in (["a sentence"], np.zeros([2, 8], np.int32), {"words": [[1]]}):
        with pytest.raises(
            ps.FeedError, match=r"expected arrays\. Use infer for arrays of 'words'"
        ):
            model.predict(examples)


def test_lengths_that_no_symbol_stands_for_are_exported_one_by_one(tmp_path):
    def sum_words():
        words = layers.data("words", [1], "float32", lod_level=1, buckets=[4, 8])
        total = jnp.zeros([words.values.shape[0], 1])
        for place in range(words.max_length):
            total += words.masked()[:, place]
        return {"total": total, "words": words}

    trainer, path = save(tmp_path, sum_words)
    model = ps.InferenceModel.load(path, place=one_device())
    assert [p.lengths for p in model.manifest.programs] == [{"words": 4}, {"words": 8}]
    # Of a sequence the length is that of a batch.
    assert [field.shape for field in model.outputs] == [(1,), (-1, 1), ()]
    for length in (2, 7):
        feed = {"words": [np.ones(length, np.float32), np.ones(1, np.float32)]}
        assert_same_bits(model.infer(feed), trainer.infer(feed))

"""Same weights, same logits: networks of the model library against keras.applications and tf_slim.

    python docs/compare_logits.py keras [NAME ...]
    python docs/compare_logits.py tf_slim [--float64] [NAME ...]

Each network gets random weights and statistics over there, is saved to a file in the format of the
place, read with `models.load_weights`, and run here on the same random images, in float32: in test
mode, and in training mode without dropout, where the batch's statistics and the moving averages
after the step count too. An error is the largest difference, relative to the largest value. What
rounding alone does is measured as well: how far the logits here move when every weight is replaced
by one of its two neighbours among the floats, drawn by chance. With `--float64` both sides compute
in that, from the same float32 weights, and the last column says how far from it, in training mode,
the float32 of either side is; Keras's batch norm computes in float32 whatever it is given. Needed
are `pip install keras h5py`, and `pip install tensorflow tf_slim tf_keras`.
"""

import dataclasses
import functools
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, models
from penstock._parameter_names import flatten_variables, nest_variables

NUM_CLASSES = 1000
LARGEST_ERROR = 1e-4

# Cheapest first. An image size leaves every part of a network more than one pixel to look at.
KERAS = {
    "mobilenet_v1_025": ("MobileNet", {"alpha": 0.25, "dropout": 0.0}, 96),
    "mobilenet_v1_050": ("MobileNet", {"alpha": 0.5, "dropout": 0.0}, 96),
    "mobilenet_v1_075": ("MobileNet", {"alpha": 0.75, "dropout": 0.0}, 96),
    "mobilenet_v1": ("MobileNet", {"dropout": 0.0}, 96),
    "mobilenet_v2_035": ("MobileNetV2", {"alpha": 0.35}, 96),
    "mobilenet_v2": ("MobileNetV2", {}, 96),
    "mobilenet_v2_140": ("MobileNetV2", {"alpha": 1.4}, 96),
    "mobilenet_v3_small_minimalistic": ("MobileNetV3Small", {"minimalistic": True}, 96),
    "mobilenet_v3_small": ("MobileNetV3Small", {}, 96),
    "mobilenet_v3_large_minimalistic": ("MobileNetV3Large", {"minimalistic": True}, 96),
    "mobilenet_v3_large": ("MobileNetV3Large", {}, 96),
    "keras_resnet_v2_50": ("ResNet50V2", {}, 96),
    "inception_v3": ("InceptionV3", {}, 299),
    "vgg_16": ("VGG16", {}, 224),
    "vgg_19": ("VGG19", {}, 224),
    "keras_resnet_v2_101": ("ResNet101V2", {}, 96),
    "keras_resnet_v2_152": ("ResNet152V2", {}, 160),
    "inception_resnet_v2": ("InceptionResNetV2", {}, 139),
    "keras_nasnet_mobile": ("NASNetMobile", {}, 224),
    "keras_nasnet_large": ("NASNetLarge", {}, 331),
}
TF_SLIM = {
    "alexnet_v2": ("alexnet", 224),
    "inception_v1": ("inception_v1", 224),
    "inception_v2": ("inception_v2", 128),
    "resnet_v1_50": ("resnet_v1", 96),
    "resnet_v2_50": ("resnet_v2", 96),
    "inception_v3": ("inception_v3", 139),
    "vgg_a": ("vgg", 224),
    "vgg_16": ("vgg", 224),
    "vgg_19": ("vgg", 224),
    "overfeat": ("overfeat", 231),
    "resnet_v1_101": ("resnet_v1", 96),
    "resnet_v2_101": ("resnet_v2", 96),
    "resnet_v1_152": ("resnet_v1", 96),
    "resnet_v2_152": ("resnet_v2", 96),
    "resnet_v1_200": ("resnet_v1", 96),
    "resnet_v2_200": ("resnet_v2", 96),
}
# Keras's gate of squeeze-and-excite has a slope of 1/6, TF-Slim's one of 0.16667.
KERAS_GATES = ("mobilenet_v3_small", "mobilenet_v3_large")
# Keras's VGG takes blue, green, red; `load_weights` turns the first kernel round.
KERAS_BGR = ("vgg_16", "vgg_19")


class Run(NamedTuple):
    """What a network gave over there: in test mode, in training mode, its statistics after that."""

    path: Path
    images: np.ndarray
    test: np.ndarray
    train: np.ndarray
    statistics: Path
    settings: dict[str, Any]


class Found(NamedTuple):
    """What a comparison found; `here` and `there` are the training logits of either side."""

    shape: tuple[int, ...]
    errors: list[float]
    last: list[float]
    here: np.ndarray
    there: np.ndarray


def drawn(name, shape, rng):
    """Return random values that keep activations of the order of 1, by the kind of variable."""
    kind = name.rsplit("/", 1)[-1]
    if "variance" in kind:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if kind == "gamma":
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if kind in ("beta", "bias", "biases", "moving_mean"):
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)
    fan_in = np.prod(shape[:3] if "depthwise" not in kind else shape[:2])
    fan_in = shape[0] if len(shape) == 2 else fan_in
    return (rng.standard_normal(shape) * (1.5 / fan_in) ** 0.5).astype(np.float32)


def images_of(size, dtype):
    """Return the images that both sides see: so many that rounding is not amplified much."""
    shape = [16 if size < 200 else {299: 8}.get(size, 4), size, size, 3]
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32).astype(dtype)


def by_keras(name, folder):
    """Run a network of keras.applications."""
    import keras

    class_name, options, size = KERAS[name]
    rng = np.random.default_rng(0)
    if "V3" in class_name and "Mobile" in class_name:
        options = options | {"include_preprocessing": False, "dropout_rate": 0.0}
    model = getattr(keras.applications, class_name)(
        input_shape=(size, size, 3),
        weights=None,
        classes=NUM_CLASSES,
        classifier_activation=None,
        **options,
    )
    for variable in model.weights:
        variable.assign(drawn(variable.path, variable.shape, rng))
    path, images = folder / f"{name}.weights.h5", images_of(size, "float32")
    model.save_weights(path)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    settings = {"dropout": 0.0, "drop_path": 0.0, "batch_norm_warmup": False}
    if norms:
        settings |= {"batch_norm_decay": norms[0].momentum, "batch_norm_epsilon": norms[0].epsilon}
        settings |= {"unbiased_running_variance": False}
    seen = images[..., ::-1] if name in KERAS_BGR else images
    test = np.asarray(model(seen, training=False))
    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    train, others = model.stateless_call(trained, others, seen, training=True)
    for variable, value in zip(model.non_trainable_variables, others, strict=True):
        variable.assign(value)
    after = folder / f"{name}_after.weights.h5"
    model.save_weights(after)
    return Run(path, images, test, np.asarray(train), after, settings)


def tf_slim_function(name):
    """Return a network of the tf_slim package, and its argument scope."""
    # TensorFlow looks for this module where tf_keras had it before 2.17.
    legacy = importlib.import_module("tf_keras.src.legacy_tf_layers.normalization")
    sys.modules.setdefault("tf_keras.legacy_tf_layers.normalization", legacy)
    module_name, _ = TF_SLIM[name]
    module = importlib.import_module(f"tf_slim.nets.{module_name}")
    owner, scope = module, module_name
    if module_name.startswith("resnet"):
        owner, scope = importlib.import_module("tf_slim.nets.resnet_utils"), "resnet"
    scope = "alexnet_v2" if scope == "alexnet" else scope
    return getattr(module, name), getattr(owner, f"{scope}_arg_scope")()


def by_tf_slim(name, folder, dtype):
    """Run a network of the tf_slim package."""
    import tensorflow.compat.v1 as tf
    import tf_slim

    network, arg_scope = tf_slim_function(name)
    arg_scope = unfused(arg_scope) if dtype == "float64" else arg_scope
    images = images_of(TF_SLIM[name][1], dtype)
    options = {} if "resnet" in name else {"dropout_keep_prob": 1.0}
    path, after, results = folder / f"{name}.ckpt", folder / f"{name}_after.ckpt", []
    for is_training in (False, True):
        rng = np.random.default_rng(0)
        with tf.Graph().as_default(), tf.Session() as session:
            fed = tf.placeholder(dtype, images.shape)
            with tf_slim.arg_scope(arg_scope):
                logits, _ = network(
                    fed, num_classes=NUM_CLASSES, is_training=is_training, **options
                )
            for variable in sorted(tf.global_variables(), key=lambda each: each.name):
                value = drawn(variable.op.name, variable.shape.as_list(), rng)
                variable.load(value, session)
            saver = tf.train.Saver()
            saver.save(session, str(path), write_meta_graph=False)
            updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if is_training else []
            value, _ = session.run([logits, updates], {fed: images})
            results.append(value.reshape(len(images), -1))
            saver.save(session, str(after), write_meta_graph=False)
    settings = {"dropout": 0.0, "drop_path": 0.0, "batch_norm_warmup": False}
    if dtype == "float64":  # what is not fused moves towards the biased variance
        settings |= {"unbiased_running_variance": False}
    before, trained = results
    return Run(path, images, before, trained, after, settings)


def unfused(arg_scope):
    """Return an argument scope whose batch norm is made of operations that float64 has."""
    plain = {}
    for function, arguments in arg_scope.items():
        norm = arguments.get("normalizer_params")
        changed = {"normalizer_params": {**norm, "fused": False}} if norm else {}
        changed |= {"fused": False} if "fused" in arguments else {}
        plain[function] = {**arguments, **changed}
    return plain


def network_here(source, name, run):
    """Return the network of the library, set as the one over there."""
    model = models.get(name, models.Settings(**run.settings))
    if source == "keras" and name in KERAS_GATES:
        gated = functools.partial(model.function, gate_slope=1 / 6)
        return dataclasses.replace(model, function=gated)
    return model


def here(model, run):
    """Return what gives test logits, training logits and statistics after a step.

    It takes a function from each of the weights to what is put in its place.
    """

    def program():
        images = layers.data("image", run.images.shape[1:], run.images.dtype)
        logits, _ = model(images, NUM_CLASSES)
        loss = layers.mean(logits)
        # XLA's CPU backend has no fast convolution in float64, and gradients change nothing here.
        is_exact = images.dtype == np.float64
        return jax.lax.stop_gradient(loss) if is_exact else loss, logits

    builder = ps.ProgramBuilder(
        program, optax.sgd(0.0), infer_func=lambda: program()[1], place=jax.devices()[:1]
    )
    weights = models.load_weights(model, run.path, image_size=run.images.shape[1])

    def loaded(move):
        state = builder.init()
        entries = flatten_variables(state.variables)
        entries = {key: weights.get("/".join(key[1]), value) for key, value in entries.items()}
        entries = {key: move(np.asarray(value)) for key, value in entries.items()}
        return builder.adopt(nest_variables(entries), state)

    def results_of(move):
        test = np.asarray(builder.infer(loaded(move), {"image": run.images}))
        state, (_, train) = builder.train(loaded(move), {"image": run.images})
        moved = flatten_variables(state.variables)
        moved = {"/".join(path): np.asarray(v) for (c, path), v in moved.items() if c != "params"}
        return test, np.asarray(train), moved

    return results_of


def as_it_is(weight):
    """Return a weight unchanged."""
    return weight


def mover():
    """Return a function that replaces each number by one of its neighbours among the floats."""
    rng = np.random.default_rng(2)

    def move(weight):
        towards = rng.choice(np.array([-np.inf, np.inf], weight.dtype), weight.shape)
        return np.nextafter(weight, towards)

    return move


def error(ours, theirs):
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def compare(source, name, folder, dtype):
    """Return what is found out about a network, both sides computing in `dtype`."""
    run = by_keras(name, folder) if source == "keras" else by_tf_slim(name, folder, dtype)
    model = network_here(source, name, run)
    results_of = here(model, run)
    test, train, statistics = results_of(as_it_is)
    after = models.load_weights(model, run.statistics, image_size=run.images.shape[1])
    moved = [error(value, after[path]) for path, value in statistics.items() if path in after]
    errors = [error(test, run.test), error(train, run.train), *([max(moved)] if moved else [])]
    moved_test, moved_train, _ = results_of(mover())
    moved_logits = [error(moved_test, test), error(moved_train, train)]
    return Found(run.images.shape, errors, moved_logits, train, run.train)


def compare_in_float64(name, folder):
    """Return the same, both sides in float64, and the errors of float32 in place of rounding's."""
    narrow = compare("tf_slim", name, folder, "float32")
    with jax.enable_x64(True):
        exact = compare("tf_slim", name, folder, "float64")
    of_float32 = [error(each, exact.there) for each in (narrow.here, narrow.there)]
    return exact._replace(last=of_float32)


def main(arguments):
    """Print the table of a source; the exit status says whether all errors are below 1e-4."""
    is_exact = "--float64" in arguments
    source, *names = [each for each in arguments if each != "--float64"] or ["keras"]
    if is_exact and source == "keras":
        raise SystemExit("--float64 got keras, expected tf_slim: Keras's batch norm is float32")
    known = {"keras": KERAS, "tf_slim": TF_SLIM}[source]
    last = "float32 from it: here, there" if is_exact else "moved weights"
    print(f"| network | images | test logits | training logits | moving averages | {last} |")
    print("|---|---|---|---|---|---|")
    wide = []
    for name in names or known:
        with tempfile.TemporaryDirectory() as folder:
            if is_exact:
                found = compare_in_float64(name, Path(folder))
            else:
                found = compare(source, name, Path(folder), "float32")
        errors = [f"{each:.1e}" for each in found.errors] + [""] * (3 - len(found.errors))
        last = ", ".join(f"{each:.1e}" for each in found.last)
        count, height, width, _ = found.shape
        print(
            f"| {name} | {count} of {height} x {width} | {' | '.join(errors)} | {last} |",
            flush=True,
        )
        if max(found.errors) > LARGEST_ERROR:
            wide.append(name)
    if wide:
        print(f"more than {LARGEST_ERROR:g}: {', '.join(wide)}", file=sys.stderr)
    return int(bool(wide))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

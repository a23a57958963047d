"""Same weights, same logits: networks of the model library against keras.applications and tf_slim.

    python docs/compare_logits.py keras [NAME ...]
    python docs/compare_logits.py tf_slim [NAME ...]

Each network gets random weights and statistics over there, is saved to a file in the format of the
place, read with `models.load_weights`, and run here on the same random images, in float32: in test
mode, and in training mode without dropout, where the batch's statistics and the moving averages
after the step count too. An error is the largest difference, relative to the largest value. Needed
are `pip install keras h5py`, and `pip install tensorflow tf_slim`.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import optax

import penstock as ps
from penstock import _parameters, layers, models

NUM_CLASSES = 1000

# MobileNet v3 is not among them: Keras's gate has a slope of 1/6, TF-Slim's one of 0.16667, and the
# logits differ by 2e-4. Image sizes leave every part of a network more than one pixel to look at.
KERAS = {
    "vgg_16": ("VGG16", {}, 224),
    "vgg_19": ("VGG19", {}, 224),
    "keras_resnet_v2_50": ("ResNet50V2", {}, 96),
    "keras_resnet_v2_101": ("ResNet101V2", {}, 96),
    "keras_resnet_v2_152": ("ResNet152V2", {}, 96),
    "inception_v3": ("InceptionV3", {}, 139),
    "inception_resnet_v2": ("InceptionResNetV2", {}, 139),
    "mobilenet_v1": ("MobileNet", {"dropout": 0.0}, 96),
    "mobilenet_v1_075": ("MobileNet", {"alpha": 0.75, "dropout": 0.0}, 96),
    "mobilenet_v1_050": ("MobileNet", {"alpha": 0.5, "dropout": 0.0}, 96),
    "mobilenet_v1_025": ("MobileNet", {"alpha": 0.25, "dropout": 0.0}, 96),
    "mobilenet_v2": ("MobileNetV2", {}, 96),
    "mobilenet_v2_140": ("MobileNetV2", {"alpha": 1.4}, 96),
    "mobilenet_v2_035": ("MobileNetV2", {"alpha": 0.35}, 96),
    "keras_nasnet_mobile": ("NASNetMobile", {}, 224),
    "keras_nasnet_large": ("NASNetLarge", {}, 331),
}
TF_SLIM = {
    "alexnet_v2": ("alexnet", "alexnet_v2", 224),
    "overfeat": ("overfeat", "overfeat", 231),
    "vgg_a": ("vgg", "vgg_a", 224),
    "vgg_16": ("vgg", "vgg_16", 224),
    "vgg_19": ("vgg", "vgg_19", 224),
    "inception_v1": ("inception_v1", "inception_v1", 224),
    "inception_v2": ("inception_v2", "inception_v2", 224),
    "inception_v3": ("inception_v3", "inception_v3", 299),
    "resnet_v1_50": ("resnet_v1", "resnet_v1_50", 96),
    "resnet_v1_101": ("resnet_v1", "resnet_v1_101", 96),
    "resnet_v1_152": ("resnet_v1", "resnet_v1_152", 96),
    "resnet_v1_200": ("resnet_v1", "resnet_v1_200", 96),
    "resnet_v2_50": ("resnet_v2", "resnet_v2_50", 96),
    "resnet_v2_101": ("resnet_v2", "resnet_v2_101", 96),
    "resnet_v2_152": ("resnet_v2", "resnet_v2_152", 96),
    "resnet_v2_200": ("resnet_v2", "resnet_v2_200", 96),
}


class Run:
    """What a network gave over there: in test mode, in training mode, its statistics after that."""

    def __init__(self, path, images, test, train, statistics, settings):
        self.path, self.images, self.settings = path, images, settings
        self.test, self.train, self.statistics = test, train, statistics


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


def images_of(size):
    """Return the images that both sides see."""
    return np.random.default_rng(1).uniform(-1, 1, [4, size, size, 3]).astype(np.float32)


def by_keras(name, folder):
    """Run a network of keras.applications."""
    import keras

    class_name, options, size = KERAS[name]
    rng = np.random.default_rng(0)
    model = getattr(keras.applications, class_name)(
        input_shape=(size, size, 3),
        weights=None,
        classes=NUM_CLASSES,
        classifier_activation=None,
        **options,
    )
    for variable in model.weights:
        variable.assign(drawn(variable.path, variable.shape, rng))
    path, images = folder / f"{name}.weights.h5", images_of(size)
    model.save_weights(path)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    settings = {"dropout": 0.0, "drop_path": 0.0}
    if norms:
        settings |= {"batch_norm_decay": norms[0].momentum, "batch_norm_epsilon": norms[0].epsilon}
        settings |= {"unbiased_running_variance": False}
    test = np.asarray(model(images, training=False))
    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    train, others = model.stateless_call(trained, others, images, training=True)
    for variable, value in zip(model.non_trainable_variables, others, strict=True):
        variable.assign(value)
    after = folder / f"{name}_after.weights.h5"
    model.save_weights(after)
    return Run(path, images, test, np.asarray(train), after, settings)


def by_tf_slim(name, folder):
    """Run a network of the tf_slim package."""
    import importlib

    import tensorflow.compat.v1 as tf
    import tf_slim

    module_name, function, size = TF_SLIM[name]
    module = importlib.import_module(f"tf_slim.nets.{module_name}")
    scope = function.rsplit("_", 1)[0] if function.startswith(("vgg", "resnet")) else function
    scope = {"resnet_v1": "resnet", "resnet_v2": "resnet"}.get(scope, scope)
    scope = "inception_v3" if scope.startswith("inception") else scope
    owner = importlib.import_module("tf_slim.nets.inception_v3") if "inc" in scope else module
    if scope == "resnet":
        owner = importlib.import_module("tf_slim.nets.resnet_utils")
    arg_scope = getattr(owner, f"{scope}_arg_scope")
    options = {} if "resnet" in function else {"dropout_keep_prob": 1.0}
    results = {}
    for is_training in (False, True):
        rng = np.random.default_rng(0)
        images = images_of(size)
        with tf.Graph().as_default(), tf.Session() as session:
            fed = tf.placeholder(tf.float32, images.shape)
            with tf_slim.arg_scope(arg_scope()):
                logits, _ = getattr(module, function)(
                    fed, NUM_CLASSES, is_training=is_training, **options
                )
            for variable in sorted(tf.global_variables(), key=lambda each: each.name):
                name_of = variable.op.name
                variable.load(drawn(name_of, variable.shape.as_list(), rng), session)
            saver, path = tf.train.Saver(), folder / f"{name}.ckpt"
            saver.save(session, str(path), write_meta_graph=False)
            updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
            value, _ = session.run([logits, updates if is_training else []], {fed: images})
            results[is_training] = value.reshape(len(images), -1)
            after = folder / f"{name}_after.ckpt"
            saver.save(session, str(after), write_meta_graph=False)
    settings = {"dropout": 0.0, "drop_path": 0.0}
    if "inception" in function:
        settings |= {"batch_norm_decay": 0.9997, "batch_norm_epsilon": 0.001}
    return Run(path, images, results[False], results[True], after, settings)


def here(name, run):
    """Return test logits, training logits and statistics after a step, of the network here."""
    size = run.images.shape[1]
    model = models.get(name, models.Settings(**run.settings))

    def program():
        images = layers.data("image", [size, size, 3])
        logits, _ = model(images, NUM_CLASSES)
        return layers.mean(logits), logits

    builder = ps.ProgramBuilder(
        program, optax.sgd(0.0), infer_func=lambda: program()[1], place=jax.devices()[:1]
    )
    state = builder.init()
    weights = models.load_weights(model, run.path, image_size=size)
    entries = _parameters.flatten(state.variables)
    entries = {key: weights.get("/".join(key[1]), value) for key, value in entries.items()}
    state = builder.adopt(_parameters.nested(entries), state)
    test = np.asarray(builder.infer(state, {"image": run.images}))
    state, (_, train) = builder.train(state, {"image": run.images})
    statistics = _parameters.flatten(state.variables)
    moved = {"/".join(path): np.asarray(v) for (c, path), v in statistics.items() if c != "params"}
    return test, np.asarray(train), moved


def error(ours, theirs):
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def compare(source, name, folder):
    """Return the errors of one network: of test logits, training logits, moving averages."""
    run = {"keras": by_keras, "tf_slim": by_tf_slim}[source](name, Path(folder))
    test, train, statistics = here(name, run)
    after = models.load_weights(name, run.statistics, image_size=run.images.shape[1])
    moved = [error(value, after[path]) for path, value in statistics.items() if path in after]
    return error(test, run.test), error(train, run.train), max(moved, default=0.0)


def main(arguments):
    """Print the table of a source; the exit status says whether all errors are below 1e-4."""
    source, *names = arguments or ["keras"]
    known = {"keras": KERAS, "tf_slim": TF_SLIM}[source]
    print("| network | images | test logits | training logits | moving averages |")
    print("|---|---|---|---|---|")
    for name in names or known:
        with tempfile.TemporaryDirectory() as folder:
            errors = compare(source, name, folder)
        cells = " | ".join(f"{each:.1e}" for each in errors)
        print(f"| {name} | {known[name][2]} x {known[name][2]} | {cells} |", flush=True)
        if max(errors) > 1e-4:
            print(f"{name}: an error of more than 1e-4", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write LeNet as a TF-Slim checkpoint, by the tf_slim package: the program that a test starts.

    python -m tests.commands.write_with_tf_slim PARAMETERS.npz CHECKPOINT

The file has penstock's names and arrays. It is a process of its own, since TensorFlow reads when it
is imported which Keras its layers are of: tf_slim needs TF_USE_LEGACY_KERAS=1.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
import tf_slim

ENDINGS = {"weights": "/w", "biases": "/b"}


def lenet(images):
    with tf.variable_scope("LeNet"):
        net = tf_slim.conv2d(images, 32, [5, 5], scope="conv1")
        net = tf_slim.max_pool2d(net, [2, 2], 2, scope="pool1")
        net = tf_slim.conv2d(net, 64, [5, 5], scope="conv2")
        net = tf_slim.max_pool2d(net, [2, 2], 2, scope="pool2")
        net = tf_slim.fully_connected(tf_slim.flatten(net), 1024, scope="fc3")
        return tf_slim.fully_connected(net, 10, activation_fn=None, scope="fc4")


def main(parameters, checkpoint):
    values = np.load(parameters)
    with tf.Graph().as_default(), tf.Session() as session:
        lenet(tf.placeholder(tf.float32, [None, 12, 12, 1]))
        for variable in tf.global_variables():
            _, layer, kind = variable.op.name.split("/")
            [name] = [n for n in values if n.startswith(f"{layer}/") and n.endswith(ENDINGS[kind])]
            variable.load(values[name], session)
        tf.train.Saver().save(session, checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])

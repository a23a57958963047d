"""Write the TensorFlow checkpoints beside this script. Needs TensorFlow (penstock[tensorflow]).

    python tests/weight_files/data/make_tensorflow_files.py

The files in the repository are of TensorFlow 2.21.0.
"""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

VARIABLES = {
    "lenet/conv1/weights": np.arange(8, dtype=np.float32).reshape(2, 2, 1, 2),
    "lenet/conv1/biases": np.ones(2, np.float32),
    "lenet/conv1/weights/Momentum": np.zeros((2, 2, 1, 2), np.float32),
    "global_step": np.int64(7),
}


def main() -> None:
    """Write one checkpoint of each kind; names in them are relative to the folder."""
    os.chdir(Path(__file__).parent)
    with tf.Graph().as_default():
        v1 = tf.compat.v1
        for name, value in VARIABLES.items():
            v1.get_variable(name, initializer=value)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for name in ("V1", "V2"):
                saver = v1.train.Saver(write_version=getattr(v1.train.SaverDef, name))
                path = f"./{name.lower()}.ckpt"
                saver.save(session, path, write_meta_graph=False, write_state=False)
    tf.train.Checkpoint(kernel=tf.Variable([1.0, 2.0])).write("./object.ckpt")


if __name__ == "__main__":
    main()

"""Write the Keras files beside this script, or into a folder. Needs keras (penstock[bench]).

    KERAS_BACKEND=jax python tests/weight_files/data/make_keras_files.py [FOLDER]

The files in the repository are of Keras 3.15.1.
"""

import sys
from pathlib import Path

import h5py
import keras
from keras.src.legacy.saving import legacy_h5_format


def network() -> keras.Model:
    """Return a network with a layer of each kind of names; variable number i is full of i."""
    image = keras.Input((4, 4, 1))
    hidden = keras.layers.Conv2D(2, 3, name="conv1")(image)
    hidden = keras.layers.BatchNormalization(scale=False, name="bn1")(hidden)
    hidden = keras.layers.DepthwiseConv2D(1, use_bias=False, name="dw")(hidden)
    hidden = keras.layers.SeparableConv2D(1, 1, use_bias=False, name="sep")(hidden)
    hidden = keras.layers.BatchNormalization(name="bn2")(hidden)
    hidden = keras.layers.Flatten(name="flat")(hidden)
    head = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="logits")], name="head")
    model = keras.Model(image, head(hidden), name="net")
    for index, variable in enumerate(model.weights):
        variable.assign(keras.ops.full(variable.shape, index))
    return model


def main() -> None:
    """Write the network in both layouts."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    model = network()
    model.save(folder / "net.keras")
    with h5py.File(folder / "legacy.h5", "w") as file:  # as keras.applications' files are laid out
        legacy_h5_format.save_weights_to_hdf5_group(file, model)


if __name__ == "__main__":
    main()

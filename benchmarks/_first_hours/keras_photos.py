import pathlib

import keras
import numpy as np

train, test = keras.utils.image_dataset_from_directory(
    "photos",
    validation_split=0.1,
    subset="both",
    seed=0,
    image_size=(96, 96),
    batch_size=16,
    format="grain",
)
model = keras.Sequential(
    [
        keras.Input(shape=(96, 96, 3)),
        keras.layers.RandomFlip("horizontal"),
        keras.layers.RandomRotation(0.1),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(train, validation_data=test, epochs=5, callbacks=[keras.callbacks.CSVLogger("log.csv")])
print("accuracy", model.evaluate(test, verbose=0)[1])
model.save("photos.keras")

for path in sorted(pathlib.Path("new").iterdir()):
    image = keras.utils.img_to_array(keras.utils.load_img(path, target_size=(96, 96)))
    answer = model.predict(image[None], verbose=0)[0]
    print(path, train.class_names[np.argmax(answer)], f"{answer.max():.1%}")

"""A plugin for tests: a network that compiles in no time, and half of the digits."""

from penstock import layers, models, readers


@models.register(
    "tiny", default_image_size=8, preprocessing="lenet", num_classes=10, num_channels=1
)
def tiny(images, num_classes):
    hidden = layers.fc(layers.flatten(images), size=32, act="relu", name="hidden")
    if num_classes is None:
        return hidden, {}
    return layers.fc(hidden, size=num_classes, name="logits"), {}


@readers.register_dataset("half_digits")
def load_half_digits(request):
    data = readers.dataset("digits", request.split).data
    rows = data["label"] < 5
    return {name: value[rows] for name, value in data.items()}

"""A plugin for tests: names of `tiny` in a state dict, and a network that has more than it."""

from penstock import layers, models, preprocessing


@models.register_weight_map("tiny", "torch", preprocessing=preprocessing.Lenet(dtype="float32"))
def tiny_of_torch():
    layers = {"hidden": "body.0", "logits": "head"}
    weights = {f"{ours}/w": f"{theirs}.weight" for ours, theirs in layers.items()}
    return weights | {f"{ours}/b": f"{theirs}.bias" for ours, theirs in layers.items()}


@models.register(
    "tiny_with_head", default_image_size=8, preprocessing="lenet", num_classes=10, num_channels=1
)
def tiny_with_head(images, num_classes):
    logits, _ = models.get("tiny")(images, num_classes)
    head = layers.scope("AuxLogits")(lambda: layers.fc(layers.flatten(images), 10, name="head"))
    return logits, {"AuxLogits": head()}


models.register_weight_map("tiny_with_head", "torch")(tiny_of_torch)

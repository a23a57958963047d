"""A plugin for tests: what the parameters of `tiny` are called in a state dict."""

from penstock import models, preprocessing


@models.register_weight_map("tiny", "torch", preprocessing=preprocessing.Lenet(dtype="float32"))
def tiny_of_torch():
    layers = {"hidden": "body.0", "logits": "head"}
    weights = {f"{ours}/w": f"{theirs}.weight" for ours, theirs in layers.items()}
    return weights | {f"{ours}/b": f"{theirs}.bias" for ours, theirs in layers.items()}

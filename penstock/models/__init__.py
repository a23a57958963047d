"""The model library: FastNN's networks, and some more, over penstock's layers.

`models.names()` lists them, `models.get(name)` gives one, `models.classifier(name, num_classes)`
makes the programs that train it, `@models.register` adds one's own. `models.load_weights` reads
weights that others published, `models.grad_cam` finds where a network looks for its answer.
"""

from penstock.models._registry import EndPoints, Model, Settings, get, names, register
from penstock.models._weight_layout import Entry
from penstock.models._weight_names import register_weight_map
from penstock.models.classification import Classifier, classifier
from penstock.models.explanation import Explanation, grad_cam
from penstock.models.weights import ForeignWeights, load_weights

__all__ = [
    "Classifier",
    "EndPoints",
    "Entry",
    "Explanation",
    "ForeignWeights",
    "Model",
    "Settings",
    "classifier",
    "get",
    "grad_cam",
    "load_weights",
    "names",
    "register",
    "register_weight_map",
]

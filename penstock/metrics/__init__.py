"""Metrics that are exact over a data set: sums that batches add up, or rows that a test keeps.

A program function returns one beside its loss: `metrics.F1.of(prediction, label)`. All take inputs
and labels as layers do, arrays or sequences, whose words count each, and

- `sample_weight`, the weight of each label, or of each example, `[B]`;
- `ignore_index`, labels that count for nothing, -100 by default where labels are classes.
"""

from penstock.metrics._metric import Interval as Interval
from penstock.metrics._metric import Mean as Mean
from penstock.metrics._metric import Metric as Metric
from penstock.metrics._metric import RowMetric as RowMetric
from penstock.metrics._metric import WeightedMean as WeightedMean
from penstock.metrics.classification import F1 as F1
from penstock.metrics.classification import Accuracy as Accuracy
from penstock.metrics.classification import Brier as Brier
from penstock.metrics.classification import CalibrationError as CalibrationError
from penstock.metrics.classification import ConfusionMatrix as ConfusionMatrix
from penstock.metrics.classification import Dice as Dice
from penstock.metrics.classification import LogLoss as LogLoss
from penstock.metrics.classification import MeanIoU as MeanIoU
from penstock.metrics.classification import Precision as Precision
from penstock.metrics.classification import Recall as Recall
from penstock.metrics.classification import TopK as TopK
from penstock.metrics.ranking import AUC as AUC
from penstock.metrics.ranking import AveragePrecision as AveragePrecision
from penstock.metrics.ranking import BinnedAUC as BinnedAUC
from penstock.metrics.ranking import BinnedAveragePrecision as BinnedAveragePrecision
from penstock.metrics.ranking import RetrievalRecall as RetrievalRecall
from penstock.metrics.ranking import Spearman as Spearman
from penstock.metrics.regression import MAE as MAE
from penstock.metrics.regression import MAPE as MAPE
from penstock.metrics.regression import MSE as MSE
from penstock.metrics.regression import R2 as R2
from penstock.metrics.regression import RMSE as RMSE
from penstock.metrics.regression import Pearson as Pearson
from penstock.metrics.text import BLEU as BLEU
from penstock.metrics.text import EditDistance as EditDistance
from penstock.metrics.text import Perplexity as Perplexity

# What `help(metrics)` explains and `import *` takes: classes, no modules.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *(n for n, v in globals().items() if getattr(v, "__module__", "").startswith(__name__))
]

"""Metrics that are exact over a data set: sums that batches add up, computed at the end."""

from penstock.metrics._metric import Mean as Mean
from penstock.metrics._metric import Metric as Metric

__all__ = ["Mean", "Metric"]

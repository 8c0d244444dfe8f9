"""Error rates and translation metrics as additive counts: what tuning, significance and reports are made of."""

from models.reranking.metrics.choice import METRIC_NAMES, make_metric
from models.reranking.metrics.interface import Metric, Statistics

__all__ = ["METRIC_NAMES", "Metric", "Statistics", "make_metric"]

"""Error rates and translation metrics as additive counts: what tuning, significance and reports are made of."""

from models.reranking.metrics.choice import METRICS, metric_of
from models.reranking.metrics.interface import Metric, Statistics

__all__ = ["METRICS", "Metric", "Statistics", "metric_of"]

"""Out-of-core estimation of n-gram models by DuckDB or Spark."""

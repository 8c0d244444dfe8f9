"""N-gram estimation past memory: one plan of named SQL stages, run by DuckDB on one machine or by Spark on many."""

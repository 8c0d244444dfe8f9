"""Products in single precision for serving: weights are packed once, at load, as this processor reads them best."""

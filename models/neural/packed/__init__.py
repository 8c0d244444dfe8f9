"""Products in single precision for serving, with weights packed once, at load, for this processor."""

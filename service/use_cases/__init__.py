"""What the service does, without HTTP: one module per endpoint family."""

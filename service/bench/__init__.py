"""Load generator for HTTP services: `gramophone bench`."""

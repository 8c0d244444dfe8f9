"""Command line `gramophone`; the one package that imports both `service` and `training`."""

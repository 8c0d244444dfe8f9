"""The HTTP service, its client and the command line; imports `models`, never `training`."""

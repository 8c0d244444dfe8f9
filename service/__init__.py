"""HTTP service, client and command line; imports `models`, never `training`."""

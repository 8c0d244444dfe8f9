"""Requests and replies of the HTTP interface."""

"""HTTP endpoints: parse the request, run the use case, write the reply."""

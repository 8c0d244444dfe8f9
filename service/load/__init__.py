"""Load on a service by HTTP, and what it was like: arrivals, drivers, observations, summaries.

Nothing here knows the service's insides: any HTTP/1.1 server can be the target. In an open loop requests
leave when they are due, whatever became of those before, and a request's time counts from when it was
due: a stall is seen by every request that fell into it (no coordinated omission; Tene 2013).
"""

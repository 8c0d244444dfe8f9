"""A model behind LitServe, with dynamic batching.

    ENVIRONMENT/bin/python tests/benchmarks/peers/litserve_app.py FOLDER --endpoint score --port 8001 [--runtime torch]

One endpoint per server: each has a worker process of its own, which polls for requests a thousand times per second
even when idle.
"""

import argparse

import litserve
from network import add_model_options, load_network


class Served(litserve.LitAPI):
    """Base of the two endpoints: loads the network in the worker process."""

    def __init__(self, given, **options):
        super().__init__(**options)
        self.given = given

    def setup(self, _device):
        self.network = load_network(self.given)

    def batch(self, inputs):
        return inputs

    def unbatch(self, output):
        return output

    def predict(self, requests):
        """Compute a batch, or a request by itself, which LitServe passes if batches are of one."""
        return self.compute(requests) if isinstance(requests, list) else self.compute([requests])[0]


class Score(Served):
    """Log-probabilities of a batch of texts."""

    def compute(self, requests):
        return self.network.score([request["ids"] for request in requests])

    def encode_response(self, output):
        return {"logprob": output}


class Generate(Served):
    """Continuations of a batch of prompts, stepped together."""

    def compute(self, requests):
        longest = max(request["max_tokens"] for request in requests)
        prompts, seeds = zip(*((request["ids"], request["seed"]) for request in requests), strict=True)
        rows = self.network.generate(prompts, longest, seeds)
        return [row[: request["max_tokens"]] for row, request in zip(rows, requests, strict=True)]

    def encode_response(self, output):
        return {"ids": output}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--endpoint", choices=["score", "generate"], required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--batch-timeout", type=float, default=0.005, help="seconds a batch waits for more requests"
    )
    parser.add_argument("--api-servers", type=int, help="HTTP processes; one per worker by default")
    parser.add_argument("--fast-queue", action="store_true", help="ZeroMQ between the processes")
    given = parser.parse_args()
    api = {"score": Score, "generate": Generate}[given.endpoint](
        given,
        api_path=f"/{given.endpoint}",
        max_batch_size=given.batch_size,
        batch_timeout=given.batch_timeout,
    )
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=given.workers,
        healthcheck_path="/health/ready",
        fast_queue=given.fast_queue,
    )
    server.run(
        host="127.0.0.1",
        port=given.port,
        num_api_servers=given.api_servers,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()

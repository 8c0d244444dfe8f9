"""Requests of growing fields: work, steps, memory and replies grow no faster than the body.

Every field of every operation is grown in several forms, and with every other field, up to a limit of the service or
of the test. Only HTTP, the document and the metrics that the service publishes, and the operating system's counters
are used.
"""

import contextlib
import functools
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest

from models.checkpoint.registry import LocalRegistry
from service.api_keys import KeyScope, create_key
from tests.support.services import ROOT, running_process

pytestmark = pytest.mark.long

MAX_FACTOR = 2.3
"""Permitted growth of CPU time, memory and reply at a doubling of the body."""

MAX_REPETITIONS = 4
"""Times that a CPU time which grows faster is measured again, since other tests run on the same cores."""

QUADRATIC = re.compile(
    "mbr|confidences|num_beams|best_of|[.]n |max_words|models|folds|restarts|resamples|continuation"
    "|query .*documents"  # the query is read after each document
    "|phrases .*texts|phrases .*lists|texts .*phrases|lists .*phrases"  # each text is searched for each phrase
    "|context comma"  # a word of any length, to which each text may belong
)
"""Fields whose task compares all with all or multiplies with another number: their steps are short nevertheless."""

SIZES = [1 << n for n in range(12, 21, 2)]
NUMBERS = [1 << n for n in range(0, 17, 2)]
STEP = 2
"""Doublings between two sizes."""

MAX_S, FLOOR_S, MAX_STEP_S = 0.5, 0.06, 0.5
"""CPU time after which a field is not grown any more; below which it is not judged; of a step."""

FLOOR_BYTES = 128 << 20
JSON, LINES, FORM = "application/json", "application/x-ndjson", "application/x-www-form-urlencoded"
TEXT = "return the lenght of the string and "
HANDLE = re.compile(r"[\w-]+\.[0-9a-f]{6}\.[\w-]{16}")


@functools.cache
def strings(size):
    """Texts of a size, by form."""
    units = {
        "letter": "a",
        "word": "lenght ",
        "blank": " ",
        "line": "\n",
        "mark": "<",
        "comma": ",",
        "quote": '"',
    }
    units["sentence"] = "Return the lenght of the string. "
    units |= {"emoji": "😀", "mixed": "a\u0301Ⓐ ", "percent": "%41", "digit": "7", "handle": '"a.'}
    made = {form: (unit * (size // len(unit.encode())))[:size] for form, unit in units.items()}
    for form, unit in (
        ("distinct", "w{} "),
        ("beginnings", "abcdefghijkl{} "),
        ("endings", "{}mnopqrstuvwx "),
    ):
        made[form] = "".join(unit.format(i) for i in range(max(1, size // (len(unit) + 3))))
    return made


@functools.lru_cache(64)
def lists(spelled, size):
    """Lists of items, given as JSON, with a size, by form."""
    count = max(1, size // (len(spelled) + 2))
    made = {"equal": [json.loads(spelled)] * count}
    if (
        old := next((text for text in ("lenght", "Gramophone", "records") if text in spelled), None)
    ) is not None:
        for form, unit in (
            ("distinct", "w{}"),
            ("beginnings", "abcdefghijkl{}"),
            ("endings", "{}mnopqrstuvwx"),
        ):
            made[form] = [json.loads(spelled.replace(old, unit.format(i))) for i in range(count)]
    return made


def items_of(schema):
    """Schema of an array's entries; of an array of fixed length, of the first."""
    return schema["items"] if "items" in schema else schema["prefixItems"][0]


def forms(schema, size):
    """Values of a schema with about a size in bytes, by form."""
    match schema.get("type"):
        case "string" if "enum" not in schema:
            return strings(size)
        case "array":
            return lists(json.dumps(sample(items_of(schema))), size)
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            value = sample(schema["additionalProperties"])
            return {"names": {f"w{i}": value for i in range(max(1, size // (len(json.dumps(value)) + 9)))}}
    return {}


def resolve(schema):
    """Alternatives of a schema, without references and null."""
    if "$ref" in schema:
        return resolve(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    inner = schema.get("anyOf") or schema.get("oneOf")
    if inner is None:
        return [] if schema.get("type") == "null" else [schema]
    return [one for choice in inner for one in resolve(choice)]


def sample(schema):
    """A small value of a schema."""
    schema = (resolve(schema) or [{}])[0]
    if schema.get("examples"):
        return schema["examples"][0]
    match schema.get("type"):
        case "string":
            return schema.get("enum", ["lenght"])[0]
        case "array":
            return [sample(one) for one in schema.get("prefixItems", [items_of(schema)])]
        case "object":
            names = schema.get("required") or list(schema.get("properties", {}))[:1]
            return {name: sample(schema["properties"][name]) for name in names}
        case "boolean":
            return True
    return max(3, schema.get("minimum", 0)) if schema.get("type") == "integer" else 0.5


class Field(NamedTuple):
    """A field of a body: its name, its schema, and how to put a value into the body."""

    name: str
    schema: dict
    put: object


def fields(name, schema, put, given):
    """Yield the fields in a value of a schema, at any depth."""
    for one in resolve(schema):
        yield Field(name, one, put)
        if one.get("type") == "array":
            first = given[0] if isinstance(given, list) and given else None
            yield from fields(f"{name}[]", items_of(one), lambda value, put=put: put([value]), first)
        for field, inner in one.get("properties", {}).items():
            if field in {"timeout_ms", "seed", "model"}:
                continue
            base = given if isinstance(given, dict) else sample(one)

            def put_field(value, base=base, field=field, put=put):
                return put({**base, field: value})

            yield from fields(f"{name}.{field}", inner, put_field, base.get(field))


class Cost(NamedTuple):
    """Cost of a request."""

    size: int
    status: int
    cpu_s: float
    loop_s: float
    peak_bytes: int
    reply_bytes: int


class Meter:
    """Sends requests to a service and reads what they cost.

    Attributes:
        rows: description, worst factor and last cost of each case.
        faults: descriptions of cases that grow too fast or take long steps.
    """

    def __init__(self, child, url, key):
        self._proc = Path(f"/proc/{child.pid}")
        self._client = httpx.Client(base_url=url, timeout=100, headers={"authorization": f"Bearer {key}"})
        self._long_steps = 0
        self.rows, self.faults = [], []

        self.document = self.get("/openapi.json").json()
        SCHEMAS.update(self.document["components"]["schemas"])
        self._handles = set(HANDLE.findall(json.dumps(self.document)))

    def close(self):
        self._client.close()

    def get(self, path):
        return self._client.get(path).raise_for_status()

    def handle(self):
        """A new state."""
        return (
            self._client.post("/v1/states", json={"context": "return"})
            .raise_for_status()
            .json()["states"][0]["state"]
        )

    def cost(self, method, path, media_type, body):
        """Send a request; return its cost."""
        content = body if isinstance(body, bytes) else self.encoded((method, path, media_type), body)
        (self._proc / "clear_refs").write_text("5")  # resets the peak of the memory
        before, cpu_s = self._status("VmRSS"), self._cpu_s()
        reply = self._client.request(method, path, content=content, headers={"content-type": media_type})
        after_s = self._cpu_s()
        peak = max(0, self._status("VmHWM") - before)
        spent = [late - early for late, early in zip(after_s, cpu_s, strict=True)]
        return Cost(len(content), reply.status_code, *spent, peak, len(reply.content))

    def encoded(self, request, body):
        """A body as bytes, with a state of the service."""
        _, path, media_type = request
        if media_type == FORM:
            return urlencode(
                {name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()}
            ).encode()
        text = json.dumps(body, ensure_ascii=False)
        if path.startswith("/v1/states/"):
            handle = self.handle()
            for example in self._handles:
                text = text.replace(example, handle)
        return text.encode()

    def keystroke_p99_s(self, seconds):
        """Time of the slowest of a hundred completions, asked for twenty times a second on one connection."""
        taken, until_s = [], time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            self._client.post("/v1/autocomplete", json={"text": f"Return the {'strlen'[: len(taken) % 6]}"})
            taken.append(time.monotonic() - began_s)
            time.sleep(max(0.0, 0.05 - taken[-1]))
        return float(np.quantile(taken, 0.99))

    @contextlib.contextmanager
    def hostile(self, requests, *, clients, seed):
        """Clients that send these requests in random order within the block."""
        stopped = threading.Event()

        def send(number):
            random = np.random.default_rng((seed, number))
            with httpx.Client(
                base_url=self._client.base_url, headers=self._client.headers, timeout=100
            ) as client:
                while not stopped.is_set():
                    (method, path, media_type), content = requests[random.integers(len(requests))]
                    client.request(method, path, content=content, headers={"content-type": media_type})

        threads = [threading.Thread(target=send, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def long_steps(self):
        """Number of steps of more than `MAX_STEP_S` since the last call."""
        text = self.get("/metrics").text
        counted = {
            name: float(value)
            for name, value in re.findall(
                r"^gramophone_slow_step_seconds_(count|bucket\S+) (\S+)$", text, re.MULTILINE
            )
        }
        long_steps = counted["count"] - counted[f'bucket{{le="{MAX_STEP_S}"}}']
        before, self._long_steps = self._long_steps, long_steps
        return long_steps - before

    def judge(self, case, costs, again):
        """Record how the costs of a case grow; `again` measures one of them again."""
        for kind in ("answered", "refused"):
            chosen = [cost for cost in costs if (cost.status < 400) == (kind == "answered")]
            if not chosen:
                continue
            self._judge(f"{case} ({kind})", chosen, again)
        if (count := self.long_steps()) > 0:
            self.faults.append(f"{case}: {count:.0f} steps over {MAX_STEP_S} s, {costs[-1]}")

    def _judge(self, case, costs, again):
        last = costs[-1]
        factors = {}
        if len(costs) > 1:
            first = costs[-2]
            # a number grows without the body
            doublings = (
                STEP if last.size - first.size < 2 * STEP else max(1, math.log2(last.size / first.size))
            )
            for name, floor in (("cpu_s", FLOOR_S), ("peak_bytes", FLOOR_BYTES), ("reply_bytes", 1 << 16)):
                early, late = getattr(first, name), getattr(last, name)
                if late > floor:
                    factors[name] = (late / max(early, floor / 4**doublings)) ** (1 / doublings)
            early_s, late_s = [], []
            while factors.get("cpu_s", 0) > MAX_FACTOR and len(late_s) < MAX_REPETITIONS:
                early_s.append(again(first).cpu_s)
                late_s.append(again(last).cpu_s)  # a busy machine only makes it slower
                early = max(statistics.median(early_s), FLOOR_S / 4**doublings)
                factors["cpu_s"] = (min(late_s) / early) ** (1 / doublings)
        self.rows.append((max(factors.values(), default=0), case, last))
        print(f"{max(factors.values(), default=0):.2f} {case} {' '.join(map(str, costs[-2:]))}", flush=True)
        for name, factor in factors.items():
            if factor > MAX_FACTOR and not QUADRATIC.search(case):
                self.faults.append(f"{case}: {name} grows by {factor:.2f} a doubling, {costs[-2]} {last}")

    def _status(self, name):
        text = (self._proc / "status").read_text()
        return 1024 * int(re.search(rf"{name}:\s+(\d+)", text)[1])

    def _cpu_s(self):
        """CPU time of all threads, and of the event loop's."""
        tasks = {task.name: task / "schedstat" for task in (self._proc / "task").iterdir()}
        spent = {name: int(file.read_text().split()[0]) / 1e9 for name, file in tasks.items()}
        return sum(spent.values()), spent[self._proc.name]


SCHEMAS = {}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("growth") / "registry", create=True)
    for name, kind in (("ngram", "word"), ("mixture", "bpe")):
        settings = [f"tokenizer.kind={kind}", "tokenizer.vocab_size=2000", "ngram.order=3"]
        options = [option for setting in settings for option in ("--set", setting)]
        command = [sys.executable, "-m", "service.cli", "train", "ngram", "--name", name, *options]
        subprocess.run([*command, "--registry", str(registry.root)], check=True, cwd=ROOT)
    registry.set_default("ngram")
    return registry


@pytest.fixture
def meter(registry, tmp_path):
    made = create_key("growth", list(KeyScope))
    settings = {"GRAMOPHONE_API_KEYS": made.key.line, "GRAMOPHONE_REQUEST_TIMEOUT_MS": "10000"}
    with (
        running_process(registry, tmp_path / "log", **settings) as (child, url),
        contextlib.closing(Meter(child, url, made.secret)) as meter,
    ):
        yield meter


def operations(document):
    """Yield method, path, media type and content of every operation with a body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                if not path.startswith("/admin/models"):  # bodies of one name
                    yield method, path.replace("{user}", "ann").replace("{name}", "a"), media_type, content


def cases_of_fields(schema, base):
    """Yield a description and growing bodies for each field and form, and for each pair of fields."""
    found = {}
    for field in fields("", schema, lambda value: value, base):
        for form in forms(field.schema, SIZES[0]):
            make = lambda size, field=field, form=form: field.put(forms(field.schema, size)[form])  # noqa: E731
            found[f"{field.name} {form}"] = map(make, SIZES)
        if field.schema.get("type") == "integer" and field.name.count(".") == 1:
            limit = field.schema.get("maximum", NUMBERS[-1])
            numbers = sorted({*(n for n in NUMBERS if n < limit), limit})
            found[f"{field.name} number"] = map(field.put, numbers)
    yield from found.items()
    own = {name: resolve(inner) for name, inner in schema["properties"].items() if name != "model"}
    grown = [
        (name, one, form)
        for name, choices in own.items()
        for one in choices
        for form in ("word", "comma", "distinct", "names")
        if form in forms(one, SIZES[0])
    ]
    for (name, one, form), (other, two, second) in itertools.combinations(grown, 2):
        if name != other:
            make = lambda size, a=(name, one, form), b=(other, two, second): {  # noqa: E731
                **base,
                a[0]: forms(a[1], size // 2)[a[2]],
                b[0]: forms(b[1], size // 2)[b[2]],
            }
            yield f".{name} {form} with .{other} {second}", map(make, SIZES[1:])


def cases_of_lines(text):
    """Yield a description and growing bodies of a format of lines, from an example."""
    word = re.search(r"list|cat|zq", text)[0]
    yield "lines", (text.encode() * (size // len(text)) for size in SIZES)
    yield "a line", (text.replace(word, f"{word} " * (size // 5), 1).encode() for size in SIZES)
    yield "blank lines", (text.encode() + b"\n" * size for size in SIZES)


def grow(meter, case, request, values):
    """Send bodies of growing values until one is refused or takes long; judge the costs."""
    costs, sent = [], {}
    for value in values:
        cost = meter.cost(*request, value)
        costs.append(cost)
        sent[cost] = value
        if cost.cpu_s > MAX_S or (cost.status in {400, 413, 422, 429} and costs[0].status < 400):
            break
    meter.judge(case, costs, lambda cost: meter.cost(*request, sent[cost]))


def cases(document, model):
    """Yield request, description and growing bodies of every case."""
    for method, path, media_type, content in operations(document):
        if content["schema"].get("type") == "string" or media_type == LINES:
            found = cases_of_lines(content["examples"]["example"]["value"])
        else:
            found = itertools.chain.from_iterable(
                cases_of_fields(
                    one, one["examples"][0] | ({"model": model} if "model" in one["properties"] else {})
                )
                for one in resolve(content["schema"])
            )
        for case, bodies in found:
            yield (method, path, media_type), f"{path} {media_type.rpartition('/')[2]} {case}", bodies


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["ngram", "mixture"])
def test_costs_grow_no_faster_than_bodies(meter, model):
    for request, case, bodies in cases(meter.document, model):
        if model == "ngram" or " with " not in case:  # pairs of fields once
            grow(meter, case, request, bodies)
    for factor, case, cost in sorted(meter.rows, reverse=True)[:40]:
        print(f"{factor:.2f} {case} {cost}")
    print(f"{len(meter.rows)} cases")
    assert not meter.faults, "\n".join(meter.faults)


def test_a_keystroke_is_answered_beside_random_bodies(meter):
    random = np.random.default_rng(46)
    chosen = [
        (request, bodies) for request, case, bodies in cases(meter.document, "ngram") if "number" not in case
    ]
    encoded = []
    for index in random.permutation(len(chosen))[:200]:
        request, bodies = chosen[index]
        body = next((body for size, body in zip(SIZES, bodies, strict=False) if size == 1 << 16), None)
        if body is not None:
            encoded.append((request, body if isinstance(body, bytes) else meter.encoded(request, body)))
    check_keystrokes(meter, encoded)


BODIES = [
    (
        "/v1/rerank",
        {"lists": [{"candidates": [{"text": "a b"}, {"text": "a c"}]}] * 1500, "confidences": True},
    ),
    ("/v1/completions", {"prompt": TEXT * 2000, "max_tokens": 1, "echo": True, "logprobs": 5}),
    ("/v1/check", {"text": "lenght " * 9000}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
def test_a_keystroke_is_answered_beside_many_small_steps(meter, path, body):
    check_keystrokes(meter, [(("post", path, JSON), json.dumps(body).encode())])


def check_keystrokes(meter, encoded):
    """Fail if completions wait for other clients' bodies."""
    for attempt in range(6):  # other tests run on the same cores
        alone_s = meter.keystroke_p99_s(3)
        with meter.hostile(encoded, clients=4, seed=attempt):
            beside_s = meter.keystroke_p99_s(10)
        if beside_s <= max(0.1, 3 * alone_s):
            return
    pytest.fail(f"p99 of a keystroke: {alone_s:.3f} s alone, {beside_s:.3f} s beside random bodies")

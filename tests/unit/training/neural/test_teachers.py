"""Networks that learn from teachers: the trainer, exact resuming, mixtures and published models."""

import json
from types import SimpleNamespace

import pytest
import torch

from models.checkpoint.load import load_tokenizer
from models.errors import InputError
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import families
from tests.support.resumable import NETWORK, VOCABULARY, Ending, corpus, fit, weights
from training.commands import run_train
from training.corpus import EncodedCorpus
from training.ensemble import divide_minutes, training_waves
from training.evaluation.evaluate import evaluate
from training.mixture import part_recipes, published_teachers
from training.neural.distributed import check_same_command
from training.neural.streams import SoftTargets, write_soft_targets
from training.ngram.estimate import estimate
from training.progress import SILENT
from training.recipe import load_recipe, parse_recipe, recipe_table
from training.single_model import ResumableRuns, Trained, TrainingInputs, with_soft_targets
from training.texts import EncodedTexts

pytestmark = pytest.mark.usefixtures("no_pictures")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Soft targets of an untrained network for the text of `tests.support.resumable`."""
    torch.manual_seed(5)
    teacher = NeuralModel(Network(NETWORK, len(VOCABULARY)), VOCABULARY)
    path = tmp_path_factory.mktemp("taught") / "targets.npy"
    write_soft_targets(path, [teacher], corpus(1), device=CPU, precision=torch.float32, progress=SILENT)
    return SoftTargets(path, ("teacher",))


FULL = {"loss": "softmax", "teacher": ("teacher",), "teacher_weight": 0.6}


def test_a_resumed_run_with_a_teacher_is_equal_bit_for_bit(tmp_path, taught):
    state_file = tmp_path / "runs" / "state.pt"
    whole = fit(soft_targets=taught, **FULL)
    for updates in (1, 17, 30):
        interrupted = fit(state_file, progress=Ending(updates), soft_targets=taught, **FULL)
        assert interrupted.stopped == "interrupted"
    other = tmp_path / "other.npy"
    other.write_bytes(taught.path.read_bytes())
    with pytest.raises(InputError, match="the teacher has changed"):
        fit(state_file, soft_targets=taught._replace(path=other), **FULL)
    resumed = fit(state_file, soft_targets=taught, **FULL)
    first, second = weights(whole), weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    untaught = weights(fit(loss="softmax"))
    assert not all(torch.equal(first[name], untaught[name]) for name in first)


def test_a_small_weight_of_the_teacher_changes_little(taught):
    untaught = weights(fit(loss="softmax", max_steps=20))
    distances = []
    for share in (0.05, 0.95):
        changed = weights(fit(soft_targets=taught, **(FULL | {"teacher_weight": share}), max_steps=20))
        distances.append(sum(float((changed[name] - untaught[name]).square().sum()) for name in untaught))
    assert distances[0] < distances[1] / 2


def test_a_student_predicts_better_with_a_teacher_than_without(tmp_path):
    """The teacher has read much text, the student reads little."""
    little, unseen = corpus(1), corpus(9)
    much = [corpus(seed) for seed in range(20, 30)]
    sentences = [text.sentence(row) for text in much for row in range(text.num_sentences)]
    teacher = estimate(EncodedCorpus.from_sentences(sentences), VOCABULARY, order=2, progress=SILENT).model
    path = tmp_path / "targets.npy"
    write_soft_targets(path, [teacher], little, device=CPU, precision=torch.float32, progress=SILENT)
    perplexities = [
        evaluate(done.model, unseen, progress=SILENT).perplexity
        for done in (
            fit(loss="softmax", max_steps=150),
            fit(soft_targets=SoftTargets(path, ()), **(FULL | {"teacher_weight": 0.9}), max_steps=150),
        )
    ]
    assert perplexities[1] < 0.97 * perplexities[0]


@pytest.mark.parametrize(("history", "is_discarded"), [((), False), ((object(),), True)])
def test_a_student_begins_anew_if_its_teacher_was_trained_further(tmp_path, history, is_discarded):
    """After Ctrl-C in the training of a teacher; `history` is empty for an n-gram model."""
    texts = EncodedTexts(families.corpus(20), families.corpus(5, seed=2), None)
    recipe = load_recipe("lstm", ['train.teacher=["a"]'])
    runs = ResumableRuns(tmp_path, "m", resume=True)
    state = runs.state_file("x")
    state.parent.mkdir(parents=True)
    state.write_bytes(b"saved")
    teachers = {"a": Trained("a", recipe, families.model("gru"), history, {}, {}, 0.0)}
    inputs = TrainingInputs(families.tokenizer(), texts, "cpu", SILENT, runs, teachers)
    with runs.locked():
        with_soft_targets({"x": recipe}, inputs)
        assert state.exists() != is_discarded
    note = "the training of x started from the beginning: its teachers were trained further"
    assert runs.notes == [note] * is_discarded


@pytest.mark.parametrize("resume", [True, False])
def test_each_combination_of_teachers_reads_the_text_once(tmp_path, monkeypatch, resume):
    texts = EncodedTexts(families.corpus(20), families.corpus(5, seed=2), None)
    recipe = load_recipe("lstm", ['train.teacher=["a"]'])
    both = load_recipe("lstm", ['train.teacher=["a", "b"]'])
    teachers = {
        title: Trained(title, recipe, families.model(name), (), {}, {}, 0.0)
        for title, name in {"a": "ngram", "b": "gru"}.items()
    }
    runs = ResumableRuns(tmp_path, "m", resume=resume)
    inputs = TrainingInputs(families.tokenizer(), texts, "cpu", SILENT, runs, teachers)
    with runs.locked():
        taught = with_soft_targets({"x": recipe, "y": recipe, "z": both, "w": load_recipe("lstm")}, inputs)
        assert taught.teachers == {}
        assert {title: targets.teachers for title, targets in taught.soft_targets.items()} == {
            "x": ("a",),
            "y": ("a",),
            "z": ("a", "b"),
        }
        assert taught.soft_targets["x"].path == taught.soft_targets["y"].path != taught.soft_targets["z"].path
        with monkeypatch.context() as patched:
            patched.setattr("training.neural.streams.write_soft_targets", pytest.fail)
            assert with_soft_targets({"x": recipe}, inputs).soft_targets["x"] == taught.soft_targets["x"]
        other = with_soft_targets({"x": recipe}, inputs._replace(texts=texts.map(EncodedCorpus.reversed)))
        other = other.soft_targets["x"]
        assert other.path != taught.soft_targets["x"].path
    assert not list(tmp_path.glob("**/*.npy"))
    assert runs.notes == []
    assert with_soft_targets({"x": recipe}, inputs._replace(runs=None)).soft_targets["x"].path.exists()


MIXTURE = {
    "family": "mixture",
    "tokenizer": {"kind": "word"},
    "ngram": {"order": 2},
    "neural": {"hidden_size": 8, "embedding_size": 8},
    "train": {"max_steps": 2, "batch_size": 2, "bptt_length": 4, "max_minutes": 6},
}


def mixture(*parts):
    """Recipe of a mixture of parts, given as names of recipes with their teachers."""
    listed = [{"recipe": recipe, "train": {"teacher": names} if names else {}} for recipe, *names in parts]
    return MIXTURE | {"mixture": {"parts": listed}}


def test_waves_follow_the_teachers_and_share_the_minutes(monkeypatch):
    recipe = parse_recipe(
        mixture(("lstm",), ("gru",), ("lstm", "lstm", "gru"), ("elman",), ("gru", "lstm-2", "other@1")),
        source="m",
    )
    parts = part_recipes(recipe)
    assert [list(wave) for wave in training_waves(parts)] == [["lstm", "gru", "elman"], ["lstm-2"], ["gru-2"]]
    assert published_teachers(recipe) == ["other@1"]
    for threads, minutes in ((2, 1.5), (1, 1.2), (8, 2.0)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        divided = divide_minutes(recipe, parts, "cpu")
        assert [part.train.max_minutes for part in divided.values()] == pytest.approx([minutes] * 5)


def test_a_part_keeps_minutes_of_its_own():
    table = mixture(("lstm",), ("gru",))
    table["mixture"]["parts"][1]["train"] = {"max_minutes": 0.5}
    recipe = parse_recipe(table, source="m")
    divided = divide_minutes(recipe, part_recipes(recipe), "cuda")
    assert [part.train.max_minutes for part in divided.values()] == [3, 0.5]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            [("lstm", "lstm")],
            r"part 'lstm' contains 'lstm', which is the part itself; the earlier parts are none",
        ),
        (
            [("ngram",), ("lstm", "gru"), ("gru",)],
            r"'gru', which is trained later; the earlier parts are ngram",
        ),
        (
            [("lstm",), ("ngram", "lstm")],
            r"train\.teacher requires family=neural, given ngram",
        ),
    ],
)
def test_teachers_among_the_parts_must_come_earlier(parts, said):
    with pytest.raises(InputError, match=said) as caught:
        part_recipes(parse_recipe(mixture(*parts), source="m"))
    assert caught.value.param == "train.teacher"


def test_the_teacher_of_a_mixture_is_that_of_its_networks_only():
    recipe = parse_recipe(recipe_table("mixture"), ['train.teacher=["big@2"]'], source="m")
    assert {title: part.train.teacher for title, part in part_recipes(recipe).items()} == {
        "ngram": (),
        "lstm": ("big@2",),
    }


@pytest.mark.parametrize(
    ("recipe", "assignments", "key", "said"),
    [
        (
            "lstm",
            ["train.teacher_weight=0.3"],
            "train.teacher_weight",
            "requires train.teacher, given 0.3 without",
        ),
        ("lstm", ["train.teacher=lstm"], "train.teacher", "must be a list, given 'lstm'"),
        (
            "lstm",
            ['train.teacher=["a"]', "train.loss=nce"],
            "train.teacher",
            "requires train.loss=softmax or auto or sampled, given nce",
        ),
        (
            "lstm",
            ['train.teacher=["a"]', "neural.output=adaptive", "neural.cutoffs=[9]"],
            "train.teacher",
            r"train\.teacher requires neural\.output=softmax, given adaptive",
        ),
        (
            "lstm",
            ['train.teacher=["a"]', "train.teacher_weight=0"],
            "train.teacher_weight",
            "above 0, given 0",
        ),
        (
            "lstm",
            ['train.teacher=["a"]', "train.teacher_weight=1.1"],
            "train.teacher_weight",
            "at most 1, given 1.1",
        ),
        (
            "ngram",
            ['train.teacher=["a"]'],
            "train.teacher",
            r"requires family=neural, given ngram",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(recipe, assignments, key, said):
    with pytest.raises(InputError, match=said) as caught:
        load_recipe(recipe, assignments)
    assert caught.value.param == key


def test_several_processes_have_no_teachers(monkeypatch):
    processes = SimpleNamespace(count=2, gather_texts=lambda text: [text, text])
    monkeypatch.setattr("training.neural.distributed.Processes.current", lambda: processes)
    recipe = load_recipe("lstm", ['train.teacher=["a"]'])
    with pytest.raises(InputError, match=r"train\.teacher requires one process, but torchrun started 2"):
        check_same_command(recipe, {"lstm": recipe}, device="cpu", resume=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Registry with a mixture whose last network learnt from the parts before it; and its corpus."""
    folder = tmp_path_factory.mktemp("taught")
    text = folder / "corpus.txt"
    text.write_text("the cat sat on the mat\na dog lay on a rug\nthe dog saw the cat\n" * 40)
    recipe = folder / "taught.toml"
    recipe.write_text(
        """family = "mixture"
[tokenizer]
kind = "word"
[ngram]
order = 2
[neural]
hidden_size = 8
embedding_size = 8
[train]
max_steps = 4
batch_size = 2
bptt_length = 4
[mixture]
recipes = ["lstm", "ngram"]
publish_parts = true
[[mixture.parts]]
recipe = "gru"
train = { teacher = ["ngram", "lstm"], teacher_weight = 0.8 }
"""
    )
    run_train(str(recipe), name="mixed", registry=folder / "registry", corpus=[text])
    return folder / "registry", text


SMALL = ["neural.hidden_size=8", "neural.embedding_size=8", "train.max_steps=3", "train.batch_size=2"]


def test_a_mixture_tells_its_teachers_and_leaves_no_files(registry):
    folder, _ = registry
    metrics = json.loads((folder / "gru/versions/1/metrics.json").read_text())
    assert metrics["teachers"] == ["ngram", "lstm"]
    assert "- teachers: ngram, lstm\n" in (folder / "gru/versions/1/MODEL_CARD.md").read_text()
    provenance = json.loads((folder / "gru/versions/1/provenance.json").read_text())
    assert provenance["recipe"]["train"]["teacher"] == ["ngram", "lstm"]
    assert not list((folder / ".runs").glob("**/*.npy"))


def test_a_network_learns_from_a_published_mixture_with_its_tokenizer(registry):
    folder, text = registry
    settings = [*SMALL, 'train.teacher=["mixed"]', "tokenizer.kind=char"]
    result = run_train("lstm", name="small", registry=folder, corpus=[text], assignments=settings)
    assert result["teachers"] == ["mixed@1"]
    card = (folder / "small/versions/1/MODEL_CARD.md").read_text()
    assert "- tokenizer: from mixed@1\n" in card
    manifests = [
        json.loads((folder / name / "versions/1/manifest.json").read_text()) for name in ("small", "mixed")
    ]
    assert manifests[0]["tokenizer_fingerprint"] == manifests[1]["tokenizer_fingerprint"]


ONLY_TEACHER = [
    *SMALL,
    "tokenizer.kind=word",
    "ngram.order=2",
    'mixture.recipes=["ngram"]',
    'mixture.parts=[{recipe="lstm", mixed=false}, {recipe="gru", train={teacher=["lstm"]}}]',
]


def test_a_network_that_only_teaches_is_no_part_of_the_mixture(registry):
    folder, text = registry
    publishing = [*ONLY_TEACHER, "mixture.publish_parts=true", "mixture.weights=by-order"]
    publishing += ["mixture.drop_unused=false"]
    inside = folder.parent / "only-teacher"
    result = run_train("mixture", name="m", registry=inside, corpus=[text], assignments=publishing)
    assert [part["name"] for part in result["parts"]] == ["ngram@1", "gru@1"]
    published = sorted(path.name for path in inside.iterdir() if not path.name.startswith("."))
    assert published == ["gru", "m", "ngram"]
    assert json.loads((inside / "gru/versions/1/metrics.json").read_text())["teachers"] == ["lstm"]


WITHOUT_NGRAM = (
    '{recipe="ngram", mixed=false}',
    '{recipe="gru", train={teacher=["ngram"]}}',
    '{recipe="lstm"}',
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ['mixture.parts=[{recipe="lstm", mixed=false}, {recipe="gru"}]'],
            r"the part 'lstm' has mixed=false, but no other part has it as a teacher \(train\.teacher\)",
        ),
        (["mixture.recipes=[]"], "at least 2 parts, given 1 recipes and 0 models"),
        (
            [f"mixture.parts=[{', '.join(WITHOUT_NGRAM)}]", "mixture.recipes=[]", "mixture.weights=by-order"],
            "mixture.weights is 'by-order', but no part is an n-gram model; the parts are neural, neural",
        ),
    ],
)
def test_a_teacher_outside_the_mixture_must_be_needed_and_does_not_count(tmp_path, changes, said):
    text = tmp_path / "text"
    text.write_text("the cat sat\n" * 50)
    with pytest.raises(InputError, match=said):
        run_train(
            "mixture", name="m", registry=tmp_path, corpus=[text], assignments=[*ONLY_TEACHER, *changes]
        )


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (['train.teacher=["nobody"]'], r"train\.teacher: there is no model 'nobody'"),
        (['train.teacher=["mixed@9"]'], r"train\.teacher: model 'mixed' has no version 9"),
        (
            ['train.teacher=["mixed"]', "direction=backward"],
            "train.teacher: mixed@1 reads forward; the network reads backward",
        ),
        (
            ['train.teacher=["mixed", "letters"]'],
            r"letters@1 has another tokenizer \(char, \d+ tokens\) than mixed@1 \(word, 13 tokens\)",
        ),
    ],
)
def test_teachers_that_do_not_fit_are_refused_before_the_text_is_read(registry, assignments, said):
    folder, text = registry
    if "letters" in assignments[0] and not (folder / "letters").exists():
        letters = ["tokenizer.kind=char", "ngram.order=2"]
        run_train("ngram", name="letters", registry=folder, corpus=[text], assignments=letters)
    with pytest.raises(InputError, match=said) as caught:
        run_train(
            "lstm",
            name="x",
            registry=folder,
            corpus=[text.with_name("absent")],
            assignments=[*SMALL, *assignments],
        )
    assert caught.value.param == "train.teacher"


def test_a_backward_teacher_reads_what_its_backward_student_reads(registry, monkeypatch):
    folder, text = registry
    settings = [*SMALL, "direction=backward"]
    run_train(
        "gru", name="back", registry=folder, corpus=[text], assignments=[*settings, "tokenizer.kind=word"]
    )
    texts = []
    monkeypatch.setattr(
        "training.neural.streams.write_soft_targets",
        lambda *given, **options: texts.append(given[2]) or write_soft_targets(*given, **options),
    )
    taught = [*settings, 'train.teacher=["back"]']
    assert run_train("lstm", name="b", registry=folder, corpus=[text], assignments=taught)["teachers"] == [
        "back@1"
    ]
    tokenizer = load_tokenizer(folder / "back/versions/1")
    assert [tokenizer.vocabulary.tokens[id_] for id_ in texts[0].sentence(0)] == [
        "mat",
        "the",
        "on",
        "sat",
        "cat",
        "the",
    ]

"""Loaded models and their addresses, the loading thread, and warm-up."""

import asyncio
import gc
import sys
import time
from types import SimpleNamespace

import pytest

from models.checkpoint.registry import LocalRegistry
from models.errors import IntegrityError, ModelNotFoundError, NotReadyError, RegistryError
from models.language_model import Vocabulary
from models.tokenizers import WordTokenizer
from service.hosting.loaded_model import LoadState
from service.hosting.loading import BATCHES, Loader, warm_up
from service.hosting.model_host import ModelHost, ModelReloader
from tests.support import families
from tests.support.checkpoints import write_minimal
from tests.support.fake_models import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate


@pytest.fixture
def registry(tmp_path):
    """Registry with `lstm` in versions 1 to 3, champion 2, and `ngram` in version 1."""
    registry = LocalRegistry(tmp_path)
    for name in ("lstm", "lstm", "lstm", "ngram"):
        registry.publish(name, write_minimal)
    registry.set_alias("lstm", "champion", 2)
    registry.set_alias("lstm", "candidate", 3)
    return registry


def load(path, *, device, precision):
    manifest = SimpleNamespace(family="fake", direction="forward")
    tokenizer = WordTokenizer(fake_vocabulary())
    return SimpleNamespace(
        manifest=manifest,
        path=path,
        device=device,
        precision=precision,
        tokenizer=tokenizer,
        model=FakeModel(tokenizer.vocabulary),
    )


def made(registry, *addresses, load=load, **options):
    host = ModelHost(Loader(registry=registry, read=load), addresses=addresses, **options)
    host.load_all()
    return host


def test_without_a_list_every_model_is_loaded_at_its_champion_or_newest(registry):
    assert sorted(made(registry).models) == ["lstm@2", "ngram@1"]


@pytest.mark.parametrize(
    ("address", "means"),
    [
        ("lstm", "lstm@2"),
        ("lstm@2", "lstm@2"),
        ("lstm@champion", "lstm@2"),
        ("lstm@3", "lstm@3"),
        ("lstm@candidate", "lstm@3"),
        ("ngram", "ngram@1"),
        (None, "lstm@2"),
    ],
)
def test_an_address_means_what_it_means_in_the_registry(registry, address, means):
    assert made(registry, "ngram", "lstm@3", "lstm").resolve(address).address == means


def test_a_bare_name_means_what_of_it_is_loaded(registry):
    assert made(registry, "lstm@3").resolve("lstm").address == "lstm@3"


@pytest.mark.parametrize("address", ["nobody", "lstm@9", "lstm@", "@2", "lstm@champion@2", "lstm/../ngram"])
def test_an_address_without_a_model_lists_what_there_is(registry, address):
    with pytest.raises(ModelNotFoundError, match="this service has: ngram@1"):
        made(registry, "ngram").resolve(address)


def test_published_version_that_is_not_loaded_is_reported(registry):
    with pytest.raises(ModelNotFoundError, match="lstm@1 is published but not loaded"):
        made(registry).resolve("lstm@1")


def test_another_name_does_not_change_the_default_and_its_reason_is_told(registry):
    """Regression: publishing `alpha` or `mixture` changed the default at the next restart."""
    before = made(registry).default.address
    for name in ("alpha", "mixture"):
        registry.publish(name, write_minimal)
        host = made(registry)
        assert (host.default.address, host.default_choice.is_guess) == (before, False)
    assert host.default_choice.reason == "it is set as the registry's default"


@pytest.mark.parametrize(("coming", "default"), [("alpha", "alpha@1"), ("mixture", "mixture@1")])
def test_a_registry_that_remembers_none_is_served_as_ever_and_called_a_guess(registry, coming, default):
    """Registries of earlier releases have no stored default."""
    registry.publish(coming, write_minimal)
    (registry.root / ".default").unlink()
    host = made(registry)
    assert (host.default.address, host.default_choice.is_guess) == (default, True)
    assert "gramophone models default" in host.default_choice.reason
    registry.publish("aardvark", write_minimal)
    assert made(registry).default.address == default


def test_the_settings_go_before_what_the_registry_remembers(registry):
    registry.set_default("ngram")
    assert made(registry).default.address == "ngram@1"
    assert made(registry, default="lstm").default.address == "lstm@2"
    assert made(registry, "lstm@1").default.address == "lstm@1"


def test_threads_are_limited_before_a_model_can_be_asked(registry, monkeypatch):
    """A thread that has already computed keeps its thread count."""
    host, limited = ModelHost(Loader(registry=registry, read=load, num_threads=3)), []
    torch = SimpleNamespace(
        set_num_threads=lambda count: limited.append((count, host.num_loaded)), Tensor=type("Tensor", (), {})
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    host.load_all()
    assert limited == [(3, 0), (3, 1)]


def test_words_are_indexed_and_ranked_before_the_first_request(registry):
    def load_words(path, **options):
        tokenizer = WordTokenizer(Vocabulary(["a", "b"]))
        corpus = EncodedCorpus.from_sentences([tokenizer.encode("a b a")])
        model = estimate(corpus, tokenizer.vocabulary, order=2).model
        return SimpleNamespace(**vars(load(path, **options)) | {"model": model, "tokenizer": tokenizer})

    loaded = made(registry, "ngram", load=load_words).resolve("ngram")
    assert "index" in vars(loaded.tokenizer)
    assert loaded.ngram_texts.is_ranked(loaded.token_trie.exact.ids)


def test_the_default_is_loaded_first(registry):
    order = []

    def noting(path, *, device, precision):
        order.append(path.parent.parent.name)
        return load(path, device=device, precision=precision)

    made(registry, load=noting, default="ngram")
    assert order == ["ngram", "lstm"]


def test_failed_load_leaves_other_models_served(registry):
    def failing(path, *, device, precision):
        if "lstm" in path.parts:
            raise IntegrityError(f"{path}/weights.bin was changed")
        return load(path, device=device, precision=precision)

    host = made(registry, load=failing)
    assert host.resolve("ngram").address == "ngram@1"
    assert host.find("lstm").state is LoadState.FAILED
    with pytest.raises(NotReadyError, match="lstm@2 could not be loaded: lstm/versions/2/"):
        host.resolve("lstm")


def test_before_loading_no_model_is_ready(registry):
    host = ModelHost(Loader(registry=registry, read=load))
    with pytest.raises(NotReadyError, match="still being loaded"):
        host.resolve("lstm")


def test_damaged_aliases_fail_their_model_only(registry):
    (registry.root / "lstm" / "aliases.json").write_text("{")
    host = made(registry, default="ngram")
    assert host.resolve(None).address == "ngram@1"
    with pytest.raises(NotReadyError, match="is damaged"):
        host.resolve("lstm")


def test_an_empty_registry_says_what_to_do(tmp_path):
    with pytest.raises(RegistryError, match="train or import one first"):
        ModelHost(Loader(registry=LocalRegistry(tmp_path)))


def test_an_alias_that_points_to_nothing_stops_its_own_model_only(registry):
    (registry.root / "lstm" / "aliases.json").write_text('{"champion": 9}')
    host = made(registry, default="ngram")
    assert host.resolve(None).address == "ngram@1"
    with pytest.raises(NotReadyError, match="has no version 9"):
        host.resolve("lstm")


def test_an_address_with_a_number_without_end_is_not_found(registry):
    with pytest.raises(ModelNotFoundError):
        made(registry).resolve("lstm@" + "9" * 5000)


class Host:
    """Host with a pending change and a model to free."""

    def refresh(self):
        time.sleep(0.05)

    def reap(self):
        return False

    def stop(self):
        pass


def test_a_change_that_ends_while_the_service_stops_begins_nothing_more():
    told = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        keeper = ModelReloader(Host(), interval_s=0)
        change = keeper.refresh()
        await keeper.close(timeout_s=10)
        await change
        await asyncio.sleep(0.05)
        gc.collect()

    asyncio.run(main())
    assert told == []


class Noting(FakeModel):
    """Fake model that records its batch sizes."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.asked = set()

    def next_log_probs(self, state):
        self.asked.add(len(state))
        return super().next_log_probs(state)


@pytest.mark.parametrize("words", [[], ["one"], [f"w{n}" for n in range(500)]])
def test_every_batch_size_is_asked_whatever_the_vocabulary(words):
    model = Noting(Vocabulary(words))
    warm_up(model)
    assert model.asked >= set(BATCHES)


@pytest.mark.parametrize("name", ["ngram", "lstm", "attentive elman", "cached mixture"])
def test_a_model_of_any_family_can_be_warmed_up(name):
    warm_up(families.model(name))

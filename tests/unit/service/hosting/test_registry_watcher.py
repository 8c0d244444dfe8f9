"""The host's watcher: new versions, moved aliases, failures, manual loading and unloading."""

import os
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from models.checkpoint.registry import LocalRegistry, open_registry
from models.errors import InputError, IntegrityError, ModelNotFoundError, NotReadyError, RegistryError
from models.tokenizers import WordTokenizer
from service.hosting.loaded_model import LoadState
from service.hosting.loading import Loader
from service.hosting.model_host import FIRST_RETRY_S, ModelHost
from service.hosting.registry_watcher import RegistryWatcher
from tests.support.checkpoints import write_minimal
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.object_stores import s3_server, using


class Clock:
    """Clock that tests set."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Loads:
    """Loader of fake models; `broken` lists versions that fail, `done` all attempts."""

    def __init__(self):
        self.broken, self.done = set(), []

    def __call__(self, path, *, precision, **_options):
        address = f"{path.parts[-3]}@{path.name}"
        self.done.append(address)
        if address in self.broken:
            raise IntegrityError(f"{path} was changed")
        tokenizer = WordTokenizer(fake_vocabulary())
        return SimpleNamespace(
            manifest=SimpleNamespace(family="fake", direction="forward"),
            precision=precision,
            tokenizer=tokenizer,
            model=FakeModel(tokenizer.vocabulary),
        )


class Outcomes:
    """Observer that records load outcomes."""

    def __init__(self):
        self.heard = []

    def model_load(self, outcome, seconds):
        assert seconds >= 0
        self.heard.append(outcome)


@pytest.fixture
def registry(tmp_path):
    """Registry with `lstm` in versions 1 and 2, champion 1, and `ngram` in version 1."""
    registry = LocalRegistry(tmp_path)
    for name in ("lstm", "lstm", "ngram"):
        registry.publish(name, write_minimal)
    registry.set_alias("lstm", "champion", 1)
    return registry


@pytest.fixture
def loads():
    return Loads()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(registry, loads, clock):
    def make(*addresses, precision="auto", budget=None, **options):
        loader = Loader(registry=registry, read=loads, clock=clock, precision=precision, budget=budget)
        host = ModelHost(loader, addresses=addresses, **options)
        host.load_all()
        return host

    return make


def test_a_moved_alias_is_followed_and_the_old_version_dropped(made, registry):
    host = made("lstm", "ngram")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve("lstm").address == host.resolve("lstm@champion").address == "lstm@2"
    assert sorted(host.models) == ["lstm@2", "ngram@1"]


def test_a_new_version_is_followed_where_there_is_no_champion(made, registry):
    host = made("ngram")
    registry.publish("ngram", write_minimal)
    host.refresh()
    assert host.resolve(None).address == "ngram@2"


def test_the_last_look_ages_while_the_registry_is_out_of_reach(made, registry, clock, monkeypatch):
    host = made("ngram")
    clock.now_s = 10
    host.refresh()
    monkeypatch.setattr(registry, "change_stamps", Mock(side_effect=RegistryError("gone")))
    clock.now_s = 17
    host.refresh()
    assert host.registry_look_age_s == 7


def test_an_address_with_a_number_stays(made, registry):
    host = made("lstm", "lstm@1", default="lstm")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve("lstm").address == "lstm@2"
    assert host.resolve("lstm@1").address == "lstm@1"


def test_nothing_is_resolved_or_loaded_again_while_nothing_changes(made, loads, monkeypatch):
    host = made("lstm")
    host.refresh()
    host.refresh()
    before = loads.done.copy()
    monkeypatch.setattr(host.registry, "snapshot", None)
    host.refresh()
    assert loads.done == before


def test_changes_within_a_tick_of_the_clock_are_all_seen(made, registry, monkeypatch):
    host = made("lstm", "ngram")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # so the changes follow immediately
    for number in (2, 1):
        registry.set_alias("lstm", "champion", number)
        registry.publish("ngram", write_minimal)
        host.refresh()
        assert host.resolve("lstm").address == f"lstm@{number}"
    assert host.resolve("ngram").address == "ngram@3"


@pytest.fixture
def in_a_store(monkeypatch, tmp_path):
    """Function that opens an S3 registry with `lstm` 1 and 2, champion 2, each time with a new cache."""
    with s3_server() as server, using(server, monkeypatch):
        address = server.make_bucket("watched")
        caches = (tmp_path / f"cache-{number}" for number in range(9))
        publisher = open_registry(address, cache=next(caches))
        for _ in range(2):
            publisher.publish("lstm", write_minimal)
        publisher.set_alias("lstm", "champion", 2)
        yield lambda: open_registry(address, cache=next(caches))


def test_an_alias_that_is_moved_while_it_is_read_and_then_back_is_followed(in_a_store, monkeypatch):
    """Later listings are compared with the tag of the content read, not with the tag of the first listing."""
    registry, other = in_a_store(), in_a_store()
    watcher = RegistryWatcher(registry, ["lstm"])
    list_all = registry.change_stamps

    def move_after_listing(names):
        stamps = list_all(names)
        other.set_alias("lstm", "champion", 1)
        return stamps

    with monkeypatch.context() as patch:
        patch.setattr(registry, "change_stamps", move_after_listing)
        for _ in range(3):
            assert watcher.poll()
            other.set_alias("lstm", "champion", 2)
    watcher.poll()
    assert [w.serving_or_target for w in watcher.watched.values()] == ["lstm@2"]


def test_a_failed_load_leaves_the_old_version_serving_and_says_why(made, registry, loads):
    host = made("lstm")
    loads.broken = {"lstm@2"}
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve("lstm").address == host.resolve("lstm@champion").address == "lstm@1"
    assert "lstm@2, which could not be loaded: lstm/versions/2 was changed" in host.find("lstm").failure
    assert host.find("lstm@2").state is LoadState.FAILED
    with pytest.raises(NotReadyError, match="lstm@2 could not be loaded"):
        host.resolve("lstm@2")


def test_a_failed_load_is_tried_again_less_and_less_often(made, registry, loads, clock):
    host = made("lstm")
    loads.broken = {"lstm@2"}
    registry.set_alias("lstm", "champion", 2)
    tried_s = []
    for second in range(200):
        clock.now_s = float(second)
        before = len(loads.done)
        host.refresh()
        tried_s += [second] * (len(loads.done) - before)
    assert tried_s == [0, FIRST_RETRY_S, 3 * FIRST_RETRY_S, 7 * FIRST_RETRY_S, 15 * FIRST_RETRY_S]
    loads.broken = set()
    clock.now_s = 31 * FIRST_RETRY_S
    host.refresh()
    assert host.resolve("lstm").address == "lstm@2"
    assert host.find("lstm").failure is None


def test_moving_the_alias_back_forgets_what_failed(made, registry, loads):
    host = made("lstm")
    loads.broken = {"lstm@2"}
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    registry.set_alias("lstm", "champion", 1)
    host.refresh()
    assert list(host.models) == ["lstm@1"]
    assert host.find("lstm").failure is None


def test_while_the_new_version_is_loaded_every_alias_goes_on_being_answered(made, registry, loads):
    """An alias that is not watched, but points to the loaded version, moves with it."""
    registry.set_alias("lstm", "candidate", 1)
    host = made("lstm")
    seen = []

    def looking(*given, **options):
        seen.extend(host.resolve(f"lstm{which}").address for which in ("", "@candidate", "@champion"))
        return loads(*given, **options)

    host._loader.read = looking
    registry.set_alias("lstm", "champion", 2)
    registry.set_alias("lstm", "candidate", 2)
    host.refresh()
    assert seen == ["lstm@1"] * 3
    assert host.resolve("lstm@candidate").address == "lstm@2"


@pytest.mark.parametrize("content", ["{", '{"champion": 9}'])
def test_damaged_aliases_leave_the_old_version_serving(made, registry, content):
    host = made("lstm")
    (registry.root / "lstm" / "aliases.json").write_text(content)
    host.refresh()
    assert host.resolve("lstm").address == "lstm@1"
    assert host.find("lstm").failure is not None
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve("lstm").address == "lstm@2"


def test_a_registry_that_has_gone_leaves_all_as_it_is(made, registry):
    host = made("lstm")
    registry.root.rename(registry.root.with_name("elsewhere"))
    host.refresh()
    assert host.resolve("lstm").address == "lstm@1"


def test_address_unresolved_at_start_is_served_once_it_resolves(made, registry):
    (registry.root / "lstm" / "aliases.json").write_text("{")
    host = made(default="ngram")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve("lstm").address == "lstm@2"
    assert sorted(host.models) == ["lstm@2", "ngram@1"]


def test_without_a_list_new_models_are_served_too(made, registry):
    host = made()
    registry.publish("gru", write_minimal)
    host.refresh()
    assert host.resolve("gru").address == "gru@1"


def test_a_new_model_with_damaged_aliases_is_told_of_once_and_served_once_they_are_mended(made, registry):
    host = made()
    registry.publish("gru", write_minimal)
    (registry.root / "gru" / "aliases.json").write_text("{")
    with capture_logs() as logs:
        for _ in range(3):
            host.refresh()
    assert [log["model"] for log in logs if log["event"] == "address cannot be resolved"] == ["gru"]
    assert host.find("gru").state is LoadState.FAILED
    registry.set_alias("gru", "champion", 1)
    host.refresh()
    assert host.resolve("gru").address == "gru@1"


def test_with_a_list_new_models_are_left_alone(made, registry):
    host = made("ngram")
    registry.publish("gru", write_minimal)
    host.refresh()
    with pytest.raises(ModelNotFoundError, match="gru@1 is published but not loaded"):
        host.resolve("gru")


def test_requests_keep_what_they_resolved_and_the_last_one_frees_it(made, registry):
    host = made("lstm")
    kept = host.resolve("lstm")
    model = weakref.ref(kept.model)
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert [leaving.address for leaving in host.unloading] == ["lstm@1"]
    assert host.reap()
    del kept
    assert model() is None
    assert not host.reap()


def test_loading_by_hand_serves_an_address_and_doing_it_twice_changes_nothing(made, loads):
    host = made("ngram")
    assert host.load("lstm@2").state is LoadState.LOADED
    assert host.load("lstm@2").address == "lstm@2"
    assert loads.done == ["ngram@1", "lstm@2"]
    assert host.resolve("lstm@2").address == "lstm@2"


def test_two_addresses_of_one_version_load_it_once(made, loads):
    host = made("ngram")
    host.load("lstm@1")
    host.load("lstm@champion")
    assert loads.done == ["ngram@1", "lstm@1"]
    assert sorted(host.followed_addresses(host.find("lstm@1"))) == ["lstm@1", "lstm@champion"]


@pytest.mark.parametrize("address", ["nobody", "lstm@9", "lstm@0", "lstm@../2", "../lstm", "lstm@x"])
def test_load_of_an_unpublished_version_is_refused_without_trace(made, address):
    host = made("ngram")
    with pytest.raises(ModelNotFoundError):
        host.load(address)
    assert list(host.models) == ["ngram@1"]
    host.refresh()


def test_a_load_by_hand_that_fails_is_not_tried_again_by_itself(made, loads, clock):
    host = made("ngram")
    loads.broken = {"lstm@2"}
    for times in (1, 2):
        assert host.load("lstm@2").state is LoadState.FAILED
        clock.now_s += 1e9
        host.refresh()
        assert loads.done.count("lstm@2") == times
    loads.broken = set()
    assert host.load("lstm@2").state is LoadState.LOADED


def test_failed_manual_load_is_retried_for_a_served_address(made, registry, loads, clock):
    host = made("lstm")
    loads.broken = {"lstm@2"}
    host.load("lstm@2")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    loads.broken = set()
    clock.now_s += 1e9
    host.refresh()
    assert host.resolve("lstm").address == "lstm@2"


def test_unloading_ends_every_address_of_the_model(made):
    host = made("ngram", "lstm", "lstm@1", default="ngram")
    host.unload("lstm@champion")
    assert list(host.models) == ["ngram@1"]
    with pytest.raises(ModelNotFoundError, match="lstm@1 is published but not loaded"):
        host.resolve("lstm")
    host.refresh()
    assert list(host.models) == ["ngram@1"]


def test_unloaded_model_stays_unloaded_with_all_models_served(made):
    host = made()
    host.unload("ngram")
    host.refresh()
    assert list(host.models) == ["lstm@1"]


def test_the_default_cannot_be_unloaded(made):
    host = made("lstm", "ngram")
    with pytest.raises(InputError, match=r"lstm@1 is the default.*GRAMOPHONE_DEFAULT_MODEL"):
        host.unload("lstm")


def test_stored_default_is_served_once_it_loads(made, registry, loads):
    host = made()
    loads.broken = {"gru@1"}
    registry.publish("gru", write_minimal)
    assert registry.default() == "lstm"
    registry.set_default("gru")
    host.refresh()
    assert host.default.address == "lstm@1"
    loads.broken = set()
    registry.publish("gru", write_minimal)
    host.refresh()
    assert host.default.address == made().default.address == "gru@2"


def test_pending_version_of_an_address_cannot_be_unloaded(made, registry, loads):
    host = made("lstm", "ngram", default="ngram")
    loads.broken = {"lstm@2"}
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    with pytest.raises(InputError, match="lstm is about to move to lstm@2"):
        host.unload("lstm@2")


def test_the_default_follows_its_address(made, registry):
    host = made("lstm", "ngram")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve(None).address == "lstm@2"


def test_a_default_with_a_number_stays_though_its_model_moves(made, registry):
    host = made("lstm", default="lstm@1")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert (host.resolve(None).address, host.resolve("lstm").address) == ("lstm@1", "lstm@2")


def test_a_default_that_is_an_alias_is_followed_too(made, registry):
    host = made("lstm", "ngram", default="lstm@champion")
    registry.set_alias("lstm", "champion", 2)
    host.refresh()
    assert host.resolve(None).address == "lstm@2"


def test_a_bare_default_means_what_of_it_is_here(made):
    host = made("lstm@2", default="lstm")
    host.refresh()
    assert host.resolve(None).address == "lstm@2"


def test_a_service_of_one_version_never_loads_another(made, registry, loads):
    host = made("lstm@2")
    registry.set_alias("lstm", "champion", 1)
    registry.publish("lstm", write_minimal)
    host.refresh()
    assert loads.done == ["lstm@2"]
    assert host.resolve(None).address == "lstm@2"


def test_a_model_that_does_not_fit_is_refused_with_what_could_be_unloaded(made, registry):
    heard = Outcomes()
    host = made("ngram", "lstm", default="lstm", report_load=heard.model_load, budget=40_000)
    assert host.find("ngram").state is LoadState.LOADED
    registry.publish("big", lambda folder: write_minimal(folder, content=bytes(50_000)))
    model = host.load("big")
    assert "big@1 needs about 48.8 KiB; the budget is 39.1 KiB" in model.failure
    assert "can be unloaded: ngram@1 (" in model.failure
    assert heard.heard == ["loaded", "loaded", "refused"]


def test_loaded_models_count_against_the_memory_budget(made):
    host = made("ngram", "lstm", default="lstm", budget=6_000)
    assert host.find("lstm").state is LoadState.LOADED
    assert "4.1 KiB are in use" in host.find("ngram").failure


def test_a_model_larger_than_it_looked_is_refused_too(made):
    host = made("ngram", budget=2_000)
    assert "ngram@1 needs about" in host.find("ngram").failure
    assert host.bytes_in_use == 0


def test_every_load_is_counted_by_how_it_went(made, registry, loads):
    heard = Outcomes()
    loads.broken = {"lstm@1"}
    made("ngram", "lstm", default="ngram", report_load=heard.model_load)
    assert heard.heard == ["loaded", "failed"]


def test_precision_goes_by_version_then_by_model_then_for_all(made):
    host = made("lstm@1", "lstm@2", "ngram", precision="float32,lstm=int8,lstm@2=auto")
    told = {own: model.loaded.checkpoint.precision for own, model in host.models.items()}
    assert told == {"lstm@1": "int8", "lstm@2": "auto", "ngram@1": "float32"}


def test_a_precision_of_a_model_that_is_not_there_is_refused(made):
    with pytest.raises(InputError, match="precision names 'lsmt'"):
        made("lstm", precision="lsmt=int8")


def test_a_precision_of_an_alias_is_refused(made):
    with pytest.raises(InputError, match="precision names 'lstm@champion'; name the model, lstm, or"):
        made("lstm", precision="lstm@champion=int8")


def test_a_precision_of_a_model_with_damaged_aliases_stops_no_other(made, tmp_path):
    (tmp_path / "lstm" / "aliases.json").write_text("{")
    host = made("lstm", "ngram", default="ngram", precision="lstm=int8")
    assert host.resolve("ngram").address == "ngram@1"
    assert host.find("lstm").state is LoadState.FAILED


def test_once_told_to_stop_nothing_more_is_loaded(registry, loads):
    host = ModelHost(Loader(registry=registry, read=loads))
    host.stop()
    host.load_all()
    assert loads.done == []

"""Which model an address means: one immutable table, replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.checkpoint.versions import CHAMPION
from service.engine.hosted import HostedModel


@dataclass(frozen=True, slots=True)
class AddressTable:
    """What every address means at one moment.

    Attributes:
        models: by their own addresses.
        by_address: by every address that leads to them: `name`, `name@7`, `name@champion`.
        default: meant by requests that name none.
    """

    models: Mapping[str, HostedModel]
    by_address: Mapping[str, HostedModel]
    default: HostedModel


def build_address_table(
    models: Mapping[str, HostedModel],
    *,
    followed: Mapping[str, str],
    aliases: Mapping[str, Mapping[str, int]],
    default: str,
    before: AddressTable | None,
) -> AddressTable:
    """The table in which every model's aliases are those that lead to it.

    Args:
        models: by their own addresses.
        followed: the model's own address for each address that the service was told to serve.
        aliases: of the registry, by model name; those of other versions than these lead nowhere.
        default: a followed address.
        before: the table that this one replaces.
    """
    leads = {address: address for address in models}
    leads |= _alias_targets(models, aliases, before)
    leads |= followed
    for address in models:
        name = address.partition("@")[0]
        if name not in leads:
            leads[name] = leads.get(f"{name}@{CHAMPION}") or _newest_address(name, models)
    shown = {
        own: replace(
            model, aliases=tuple(sorted(_alias(at) for at, to in leads.items() if to == own and _alias(at)))
        )
        for own, model in models.items()
    }
    by_address = {address: shown[own] for address, own in leads.items()}
    return AddressTable(shown, by_address, by_address[default])


def _alias_targets(
    models: Mapping[str, HostedModel], aliases: Mapping[str, Mapping[str, int]], before: AddressTable | None
) -> dict[str, str]:
    """Where aliases that nobody asked to follow lead: to what is here anyway."""
    leads = {}
    for name, pointing in aliases.items():
        for alias, number in pointing.items():
            address, own = f"{name}@{alias}", f"{name}@{number}"
            if own not in models:
                continue
            old = before.by_address.get(address) if before is not None else None
            if (
                models[own].loaded is None
                and old is not None
                and old.loaded is not None
                and old.address in models
            ):
                own = old.address  # until the new one can answer
            leads[address] = own
    return leads


def _newest_address(name: str, models: Mapping[str, HostedModel]) -> str:
    """The version with the highest number of those that are here, those that can answer first."""
    of_name = [model for model in models.values() if model.name == name]
    best = max(of_name, key=lambda m: (m.loaded is not None, m.version.number if m.version else 0))
    return best.address


def _alias(address: str) -> str:
    """The alias in an address, or nothing."""
    which = address.partition("@")[2]
    return "" if which.isdecimal() else which

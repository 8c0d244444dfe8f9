"""Which of the followed addresses is meant by requests that name no model, and why."""

from collections.abc import Callable

from models.checkpoint.default_name import choose_default
from service.engine.following import RegistryWatcher
from service.engine.hosted import HostedModel


class DefaultModel:
    """The default of a service. For one thread at a time.

    Args:
        following: the followed addresses; not empty.
        said: the address that the settings say; None means what the registry remembers, if that is followed,
            else what is chosen among what is followed.

    Attributes:
        address: a followed one.
        reason: why it is that one.
        is_guess: whether nobody has said so, and others are followed.
    """

    def __init__(self, following: RegistryWatcher, said: str | None) -> None:
        self._watcher = following
        self._configured = said
        self._remembered = following.default
        self.address = next(iter(following.watched))  # until there is a table to choose from
        self.reason = ""
        self.is_guess = False

    def choose(self, find: Callable[[str], HostedModel]) -> None:
        """Choose.

        Args:
            find: the place of the model that an address means.

        Raises:
            ModelNotFoundError: what the settings say is not served.
        """
        if self._configured:
            address, self.reason = self._configured, f"GRAMOPHONE_DEFAULT_MODEL is {self._configured}"
        else:
            self._remembered = self._watcher.default
            names = sorted({one.name for one in self._watcher.watched.values()})
            address, self.reason, self.is_guess = choose_default(names, self._remembered)
        self.address = self._watched_address(address, find)

    def update(self, find: Callable[[str], HostedModel]) -> bool:
        """Choose again, if the registry remembers another by now and that can answer.

        Returns:
            Whether another was chosen.
        """
        remembered = self._watcher.default
        names = {one.name for one in self._watcher.watched.values()}
        if (
            self._configured
            or remembered == self._remembered
            or remembered is None
            or remembered not in names
        ):
            return False
        if find(remembered).loaded is None:
            return False
        before = self.address
        self.choose(find)
        return self.address != before

    def _watched_address(self, address: str, find: Callable[[str], HostedModel]) -> str:
        followed = self._watcher.watched
        if address in followed:
            return address
        means = find(address).address
        if self._configured and self._watcher.resolved_address(address) == means:
            return self._watcher.watch(address).address
        # a bare name that nobody asked to follow: what of it is here
        return next(one.address for one in followed.values() if one.target == means)

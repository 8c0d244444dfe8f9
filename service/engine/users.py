"""What users of autocomplete have written: a personal model each, for whoever has the key that it was learnt with.

Kept in memory alone, of a bounded number of users; who was not heard of for longest is forgotten first. All is done
on the event loop: a personal model is a value, which a request takes along to wherever it is answered.
"""

from collections import OrderedDict
from collections.abc import Sequence

from models.completion.personal import UserModel, UserModelLimits, WordSequence
from models.errors import UnknownUserError

_EMPTY_MODEL = UserModel()


class UserStore:
    """Keeps personal models by owner and user.

    Args:
        max_users: kept at most, those of all owners together.
        bounds: of one personal model.
    """

    def __init__(self, *, max_users: int, bounds: UserModelLimits) -> None:
        self._max_users = max_users
        self.bounds = bounds
        self._models: OrderedDict[tuple[str, str], UserModel] = OrderedDict()  # the longest unused first

    def __len__(self) -> int:
        """Users that are kept."""
        return len(self._models)

    def get(self, owner: str, user: str) -> UserModel:
        """What a user has written; nothing if nothing is known of them."""
        model = self._models.get((owner, user))
        if model is None:
            return _EMPTY_MODEL
        self._models.move_to_end((owner, user))
        return model

    def find(self, owner: str, user: str) -> UserModel:
        """What a user has written.

        Raises:
            UnknownUserError: nothing is known of them.
        """
        if (owner, user) not in self._models:
            raise UnknownUserError(
                f"nothing is known of the user {user!r}: they accepted nothing, or so many others have since that "
                f"they were forgotten; {self._max_users} are kept",
                parameter="user",
            )
        return self.get(owner, user)

    def learn(self, owner: str, user: str, sentences: Sequence[WordSequence]) -> UserModel:
        """A user has written sentences; what is known of them by now."""
        return self.put(owner, user, self.get(owner, user).updated(sentences, self.bounds))

    def put(self, owner: str, user: str, model: UserModel) -> UserModel:
        """Know this of a user instead of whatever was known; what of it the bounds allow."""
        model = model.limited_to(self.bounds)
        self._models[owner, user] = model
        self._models.move_to_end((owner, user))
        while len(self._models) > self._max_users:
            self._models.popitem(last=False)
        return model

    def forget(self, owner: str, user: str) -> bool:
        """Know nothing of a user any more; whether anything was known."""
        return self._models.pop((owner, user), None) is not None

"""Ids, control tokens, fingerprints."""

import pytest

from models.errors import InvalidInputError
from models.vocabulary import BOS, EOS, UNK, Vocabulary


def test_control_tokens_come_first_and_are_not_looked_up_by_spelling():
    vocabulary = Vocabulary(["a", "<s>", "<unk>"])
    assert vocabulary.tokens[:3] == ("<unk>", "<s>", "</s>")
    assert vocabulary.id_of("<s>") == 4
    assert vocabulary.id_of("<unk>") == 5
    assert vocabulary.id_of("</s>") == UNK
    assert {UNK, BOS, EOS} == {0, 1, 2}


def test_a_token_given_twice_is_refused_by_name():
    with pytest.raises(InvalidInputError, match="'b' twice"):
        Vocabulary(["a", "b", "c", "b"])


def test_fingerprint_depends_on_tokens_and_their_order():
    assert Vocabulary(["a", "b"]).fingerprint == Vocabulary(["a", "b"]).fingerprint
    assert Vocabulary(["a", "b"]).fingerprint != Vocabulary(["b", "a"]).fingerprint
    assert Vocabulary(["a", "b"]).fingerprint != Vocabulary(["a,b"]).fingerprint


@pytest.mark.parametrize("bad", [-1, 5, 2**31, 2**63, 10**30])
def test_ids_outside_the_vocabulary_are_named_with_place_and_limit(bad):
    vocabulary = Vocabulary(["a", "b"])
    with pytest.raises(InvalidInputError, match=rf"token_ids\[1\] is {bad}, .* 0 to 4") as caught:
        vocabulary.check_ids([3, bad], parameter="token_ids")
    assert caught.value.parameter == "token_ids[1]"

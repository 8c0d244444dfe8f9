"""Candidates on their way to token ids."""

from unittest.mock import Mock

from models.reranking.candidates import Candidate, CandidateList
from service.use_cases.candidate_texts import find_distinct_texts, tokenise_texts
from service.use_cases.inputs import Limits

LIMITS = Limits(max_texts=1000, max_tokens_per_sequence=1000, max_new_tokens=1)


def test_what_a_text_is_called_is_not_sought_for_each_of_many(characters, finish):
    """To find that looks through all candidates: of the 65,536 that may be tuned on it would take seconds."""
    candidates = tuple(Candidate(f"a{'b' * length}") for length in range(50))
    named = Mock(return_value="lists[0].")
    distinct, _ = finish(find_distinct_texts([CandidateList(None, "a", candidates)], (), named))
    texts, _ = finish(tokenise_texts(characters, distinct, LIMITS, eos=True))
    assert len(texts.offsets) == 51
    assert named.call_count <= 1

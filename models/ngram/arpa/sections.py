r"""The sections of an ARPA file: `\1-grams:` and so on, each line an n-gram.

The kernels read lines; what they cannot decide comes here: making room, numbers that are not
plain decimals, the end of the file, and every refusal, with its line and what to do about it.
"""

from typing import NoReturn

import numpy as np

from models.ngram.arpa import kernels
from models.ngram.arpa.decimals import nearest_float
from models.ngram.arpa.kernels import IntArray, NGramRows, ParseStop, PrefixTrie
from models.ngram.arpa.source import ArpaSource, quote_bytes
from models.ngram.verification import MAX_LOG10_BACKOFF
from models.word_table import WordTable

_INITIAL_ROWS = 1 << 16
_MAX_HARD_NUMBERS = 256
_COUNTS_HINT = "correct its head, or make the file again"


class ArpaSection:
    """The n-grams of one order, read line by line.

    Args:
        source: at the line after the section's heading.
        order: words in an n-gram.
        declared: how many n-grams the head of the file promises; room is made as they come.

    Attributes:
        rows: in the order of the file; what was read is as long as promised.
        missing_backoffs: how many lines have no back-off weight.

    Raises:
        FormatError: a line is wrong, or there are more or fewer than promised; from every method.
    """

    def __init__(self, source: ArpaSource, *, order: int, declared: int) -> None:
        self.missing_backoffs = 0
        self._source = source
        self._order = order
        self._declared = declared
        self._count = 0
        self._hard = np.zeros((_MAX_HARD_NUMBERS, 4), dtype=np.int64)
        room = min(declared, _INITIAL_ROWS)
        self.rows = NGramRows(
            prefixes=np.zeros(room, dtype=np.int32),
            words=np.zeros(room, dtype=np.int32),
            log10_probs=np.zeros(room, dtype=np.float32),
            log10_backoffs=np.zeros(room, dtype=np.float32),
            lines=np.zeros(room, dtype=np.int64),
        )

    def read(self, words: WordTable, ids: IntArray, trie: PrefixTrie) -> None:
        """Read the section.

        Args:
            words: of all unigrams; to read those, an empty one, which gets the word of row i as number i.
            ids: the id of each of the words; not read for unigrams.
            trie: the orders below.
        """
        source, order = self._source, self._order
        while True:
            stop = kernels.read_ngrams(
                source.block,
                source.offset,
                source.line,
                self.rows,
                self._count,
                order,
                words.table,
                ids,
                trie,
                self._hard,
            )
            source.offset, source.line, self._count = stop.offset, stop.line, stop.filled
            self.missing_backoffs += stop.missing
            if order == 1:
                words.size = stop.filled
            self._read_hard_numbers(stop)
            if stop.code == kernels.SECTION_ENDS:
                break
            if stop.code == kernels.BLOCK_ENDS:
                if not source.refill():
                    source.fail_ended(f"\\end\\, after {self._count} of the {self._promised()}")
            elif stop.code == kernels.FULL:
                self._grow(words)
            else:
                self._refuse(stop, words)
        if self._count < self._declared:
            source.fail(f"the section ends after {self._count} of the {self._promised()}", hint=_COUNTS_HINT)

    def check_backoffs(self, *, highest: int) -> None:
        """Refuse a back-off weight that, charged at every length, would be more than a number can hold.

        Args:
            highest: the order of the longest n-grams.
        """
        most = MAX_LOG10_BACKOFF // max(highest - 1, 1)
        row = int(self.rows.log10_backoffs.argmax()) if len(self.rows.log10_backoffs) else -1
        if row >= 0 and self.rows.log10_backoffs[row] > most:
            self._source.fail(
                f"the back-off weight is {self.rows.log10_backoffs[row]:g}, the logarithm to base 10 of a factor; "
                f"at order {highest} it can be at most {most:g}",
                line=int(self.rows.lines[row]),
            )

    def fail_duplicate(self, first: int, second: int) -> NoReturn:
        """Refuse the file for two lines, given by their numbers, that list the same n-gram."""
        first, second = sorted((first, second))
        self._source.fail(
            f"this {self._order}-gram is listed already, in line {first}",
            line=second,
            hint="keep one of them",
        )

    def _promised(self) -> str:
        return f"{self._declared} n-grams of order {self._order} that the head of the file promises"

    def _grow(self, words: WordTable) -> None:
        if self._count == self._declared:
            self._source.fail(f"there are more than the {self._promised()}", hint=_COUNTS_HINT)
        if self._count == len(self.rows.words):
            room = min(self._declared, 2 * self._count)
            for array in self.rows:
                array.resize(room, refcheck=False)  # in place; nobody else holds a view
        if self._order == 1:
            words.grow(len(self._source.block))  # no word is longer

    def _read_hard_numbers(self, stop: ParseStop) -> None:
        """Fill in the numbers that the kernel has left, and refuse those that cannot be."""
        block = self._source.block
        for row, column, start, end in self._hard[: stop.num_hard].tolist():
            line = int(self.rows.lines[row]) if row < self._count else stop.line
            field = block[start:end].tobytes()
            value = nearest_float(field)
            name = "log-probability" if column == kernels.PROB else "back-off weight"
            if value is None:
                self._source.fail(
                    f"{quote_bytes(field)} stands where a {name} is due", line=line, hint=self._layout()
                )
            if np.isnan(value):
                self._source.fail(f"the {name} is not a number: {quote_bytes(field)}", line=line)
            if column == kernels.PROB:
                if value > kernels.MAX_LOG_PROB:
                    self._fail_positive(field, line)
                self.rows.log10_probs[row] = value
            else:
                if value == np.inf:
                    self._source.fail(f"the {name} is infinite: {quote_bytes(field)}", line=line)
                self.rows.log10_backoffs[row] = value

    def _refuse(self, stop: ParseStop, words: WordTable) -> NoReturn:
        """Say what is wrong in the line that the kernel stopped at."""
        field = self._source.field_at(stop.field)
        if stop.code == kernels.POSITIVE_LOG_PROB:
            self._fail_positive(field, stop.line)
        if stop.code == kernels.DUPLICATE:
            self.fail_duplicate(int(self.rows.lines[words.add(field)]), stop.line)
        if stop.code == kernels.NO_PREFIX:
            prefix = self._source.fields_at(stop.offset)[1 : self._order]
            problem = f"{quote_bytes(b' '.join(prefix))} is not listed among the {self._order - 1}-grams"
            hint = "all but the last word of an n-gram must be listed, too, with the back-off weight"
        elif stop.code == kernels.UNKNOWN_WORD:
            problem, hint = f"the word {quote_bytes(field)} is not listed among the 1-grams", self._layout()
        elif stop.code == kernels.TOO_FEW_WORDS:
            problem = "there is no word" if self._order == 1 else f"there are fewer than {self._order} words"
            hint = self._layout()
        else:
            problem, hint = f"{quote_bytes(field)} is one field too many", self._layout()
        self._source.fail(problem, hint=hint)

    def _fail_positive(self, field: bytes, line: int) -> NoReturn:
        self._source.fail(
            f"the log-probability {quote_bytes(field)} is above 0: no probability is above 1", line=line
        )

    def _layout(self) -> str:
        words = "a word" if self._order == 1 else f"{self._order} words"
        return f"a line here has a log-probability, {words} and perhaps a back-off weight"

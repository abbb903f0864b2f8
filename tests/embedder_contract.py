"""What every `Embedder` keeps, whatever computes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cache.embedding import Embedder, EmbeddingError, EmbeddingRefusedError

TEXTS = (
    "The weather is lovely today.",
    "Café, naïve?",
    "a",
    "",
    "  \t\n",
    "x" * 5000,
    "one two three " * 300,
    "日本 🙂",
    "a\0b",
)
TOLERANCE = 2e-6


class EmbedderContract:
    """Give `embedder` in a subclass."""

    def test_rows_have_length_one_in_the_order_of_the_texts(self, embedder: Embedder) -> None:
        rows = embedder.embed(TEXTS)
        assert rows.dtype == np.float32
        assert rows.shape == (len(TEXTS), embedder.dim)
        assert np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1).max() < 1e-6
        backwards = embedder.embed(TEXTS[::-1])
        assert np.abs(backwards[::-1] - rows).max() < TOLERANCE

    def test_a_row_does_not_depend_on_its_neighbours(self, embedder: Embedder) -> None:
        rows = embedder.embed(TEXTS)
        for at, text in enumerate(TEXTS):
            assert np.abs(embedder.embed([text])[0] - rows[at]).max() < TOLERANCE, at

    def test_different_texts_have_different_rows(self, embedder: Embedder) -> None:
        one, other = embedder.embed(["the quick brown fox", "what is the capital of france"])
        assert one @ other < 0.999

    def test_no_texts_no_rows(self, embedder: Embedder) -> None:
        assert embedder.embed([]).shape == (0, embedder.dim)

    def test_rows_are_the_caller_s(self, embedder: Embedder) -> None:
        first = embedder.embed(["fox"])
        kept = first.copy()
        first[:] = 7
        assert np.abs(embedder.embed(["fox"]) - kept).max() < TOLERANCE

    def test_many_threads_at_once(self, embedder: Embedder) -> None:
        expected = embedder.embed(TEXTS)
        with ThreadPoolExecutor(4) as pool:
            for rows in pool.map(lambda _: embedder.embed(TEXTS), range(8)):
                assert np.abs(rows - expected).max() < TOLERANCE

    def test_a_text_that_is_no_unicode_is_refused(self, embedder: Embedder) -> None:
        with pytest.raises(EmbeddingRefusedError) as told:
            embedder.embed(["fine", "not \ud800 fine"])
        assert "fine" not in str(told.value)
        assert isinstance(told.value, EmbeddingError)
        embedder.embed(["fine"])

    def test_its_name_is_short_and_printable(self, embedder: Embedder) -> None:
        assert embedder.name.isascii()
        assert embedder.name.isprintable()
        assert 10 < len(embedder.name) < 100

    def test_it_may_be_closed_twice(self, embedder: Embedder) -> None:
        embedder.close()
        embedder.close()

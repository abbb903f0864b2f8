"""From logits to tokens, for a batch of sequences that each have parameters of their own.

The order is vLLM v1's: logit bias, `min_tokens`, repetition, frequency and presence penalty; then, for a row that
is not greedy, temperature, min-p, top-k, top-p, each over what the one before left. What needs the whole
vocabulary is done for the batch on the device; only tokens that can still be drawn are sorted (`token_draw`).

Sources: vLLM `v1/sample/sampler.py` (order), OpenAI's API reference (presence and frequency), Keskar et al. 2019
(repetition), Nguyen et al. 2024 (min-p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backends.worker.messages import SamplingParams, TokenLogprobs
from backends.worker.model.token_draw import Floats, Ids, draw, ranked, uniform

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy, as in vLLM."""

_MOST_SELECTED = 1024
"""A larger top-k is cut after sorting, which is then cheaper than to look for its smallest weight."""


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """One sequence that is to get a token."""

    params: SamplingParams
    index: int
    """Number of the output token to draw, from 0."""
    prompt_ids: Sequence[int] | Ids = ()
    """Read for a repetition penalty only, as `output_ids` are for any penalty; an int array is read fastest."""
    output_ids: Sequence[int] | Ids = ()
    suppressed: Sequence[int] = ()
    """Ids that cannot be drawn while `index` is below `min_tokens`: end of sequence and stop tokens."""

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.params.temperature < GREEDY_BELOW

    @property
    def is_edited(self) -> bool:
        """Whether something changes the logits themselves."""
        params = self.params
        penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        return bool(penalties or params.logit_bias or (self.suppressed and self.index < params.min_tokens))


class BadLogitsError(ArithmeticError):
    """Rows whose logits have NaN or +inf, or leave no token at all; `rows` are their places in the batch.

    Nothing was drawn. The other rows, given again, get the tokens that they would have got here.
    """

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(f"logits with NaN or infinity, or with no token left, in rows {', '.join(map(str, rows))}")
        self.rows = rows


class Sampler:
    """Samples on one device; keeps work space for the largest batch seen (`[n, vocab_size]`, twice)."""

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._vocab = vocab_size
        self._device = torch.device(device)
        self._on_cpu = self._device.type == "cpu"
        self._spaces: dict[tuple[str, torch.dtype], Tensor] = {}

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[tuple[int, TokenLogprobs | None]]:
        """One token for each row of `logits` [n, vocab] (any float type, not changed), with its logprobs if asked.

        Raises BadLogitsError.
        """
        if tuple(logits.shape) != (len(rows), self._vocab):
            raise ValueError(f"logits are {tuple(logits.shape)}, not {(len(rows), self._vocab)}")
        if not rows:
            return []
        scores = self._scores(logits, rows)
        peaks = scores.amax(-1)
        if bad := tuple((~peaks.isfinite()).nonzero().flatten().tolist()):
            raise BadLogitsError(bad)
        tokens = [0] * len(rows)
        greedy = [at for at, row in enumerate(rows) if row.is_greedy]
        for at, token in zip(greedy, self._likeliest(scores, peaks, greedy), strict=True):
            tokens[at] = token
        drawn = [at for at, row in enumerate(rows) if not row.is_greedy]
        if drawn:
            for at, token in zip(drawn, self._draw(scores, peaks, rows, drawn), strict=True):
                tokens[at] = token
        told = self._logprobs(scores, peaks, rows, tokens)
        return [(token, told.get(at)) for at, token in enumerate(tokens)]

    def _space(self, name: str, rows: int, dtype: torch.dtype) -> Tensor:
        """Work space [rows, vocab]. Fresh memory of this size costs more in page faults than the work done in it."""
        space = self._spaces.get((name, dtype))
        if space is None or len(space) < rows:
            space = self._spaces[name, dtype] = torch.empty(rows, self._vocab, dtype=dtype, device=self._device)
        return space[:rows]

    def _scores(self, logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
        """Logits in float32 (float64 stays) after bias, suppression and penalties."""
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        edited = [at for at, row in enumerate(rows) if row.is_edited]
        if logits.dtype == dtype and not edited:
            return logits
        scores = self._space("scores", len(rows), dtype).copy_(logits)
        for at in edited:
            self._edit(scores[at], rows[at])
        return scores

    def _edit(self, scores: Tensor, row: SamplerRow) -> None:
        params = row.params
        if params.logit_bias:
            bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < self._vocab}
            ids = self._ids(list(bias))
            scores[ids] += torch.tensor(list(bias.values()), dtype=scores.dtype, device=self._device)
        if row.suppressed and row.index < params.min_tokens:
            scores[self._ids(row.suppressed)] = -torch.inf
        output = self._ids(row.output_ids)
        if params.repetition_penalty != 1:
            # An id that comes twice is written twice, with one value.
            ids = torch.cat((self._ids(row.prompt_ids), output))
            seen = scores[ids]
            scores[ids] = torch.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
        if params.frequency_penalty or params.presence_penalty:
            ids, counts = torch.unique(output, return_counts=True)
            scores[ids] -= params.frequency_penalty * counts.to(scores.dtype) + params.presence_penalty

    def _ids(self, ids: Sequence[int] | Ids) -> Tensor:
        """As a tensor, without ids that the model has no logits for."""
        array = np.asarray(ids, dtype=np.int64)
        return torch.from_numpy(array[(array >= 0) & (array < self._vocab)]).to(self._device)

    def _likeliest(self, scores: Tensor, peaks: Tensor, places: list[int]) -> list[int]:
        """The first id of the largest score in each of the rows `places`."""
        if not self._on_cpu:
            return [int(token) for token in scores.argmax(-1)[places].tolist()] if places else []
        # Here argmax takes twenty times as long as amax.
        return [int((scores[at].numpy() == peaks[at].item()).argmax()) for at in places]

    def _draw(self, scores: Tensor, peaks: Tensor, rows: Sequence[SamplerRow], places: list[int]) -> list[int]:
        """A token for each of the rows `places`, none of them greedy."""
        weights = self._weights(scores, peaks, places, [rows[at].params.temperature for at in places])
        all_params = [rows[at].params for at in places]
        for at, params in enumerate(all_params):
            if params.min_p > 0:
                # Weights are relative to the likeliest token's, which is 1.
                weights[at].masked_fill_(weights[at] < params.min_p, 0)
        samples = [uniform(rows[at].params.seed, rows[at].index) for at in places]
        totals = self._sums(weights)
        floors = self._floors(weights, all_params, totals, samples)
        tokens = []
        for at, (ids, heavy, values) in enumerate(self._above(weights, floors, scores, places)):
            params = all_params[at]
            order = ranked(values, ids)
            top_k = self._top_k(params)
            total = None if top_k else totals[at]
            place = draw(heavy[order], total=total, top_k=top_k, top_p=params.top_p, sample=samples[at])
            tokens.append(int(ids[order[place]]))
        return tokens

    def _top_k(self, params: SamplingParams) -> int:
        return params.top_k if 0 < params.top_k < self._vocab else 0

    def _weights(self, scores: Tensor, peaks: Tensor, places: list[int], temperatures: list[float]) -> Tensor:
        """Probabilities relative to the likeliest token's, [len(places), vocab], in work space."""
        space = self._space("weights", len(places), scores.dtype)
        whole = len(places) == len(scores)
        picked = torch.tensor(places, device=self._device)
        rows = scores if whole else torch.index_select(scores, 0, picked, out=space)
        torch.sub(rows, peaks[picked][:, None], out=space)
        if any(value != 1 for value in temperatures):
            # So small that it makes no difference, so large that 0 / it is 0.
            clamped = [max(value, 1e-30) for value in temperatures]
            space.div_(torch.tensor(clamped, dtype=scores.dtype, device=self._device)[:, None])
        return space.exp_()

    def _sums(self, weights: Tensor) -> list[float]:
        """Of each row, in float64."""
        if self._on_cpu:
            # One row at a time in one thread: the same sum in every batch.
            return [float(row.sum(dtype=np.float64)) for row in weights.numpy()]
        return weights.sum(-1, dtype=torch.float64).tolist()

    def _floors(
        self, weights: Tensor, all_params: Sequence[SamplingParams], totals: list[float], samples: list[float]
    ) -> list[float]:
        """A weight for each row; no token at or below it can be drawn.

        Without top-k: let a share q be what must be reached (top-p, or the sample itself). All tokens that weigh at
        most (1 - q) of the total divided by their number weigh no more than 1 - q together, so the others reach q.
        Half of that, for rounding.
        """
        floors = [
            (1 - (params.top_p if params.top_p < 1 else sample)) * total / self._vocab / 2
            for params, total, sample in zip(all_params, totals, samples, strict=True)
        ]
        selected = [(at, k) for at, params in enumerate(all_params) if (k := self._top_k(params))]
        for at, k in selected:
            floors[at] = 0
            if k <= _MOST_SELECTED:
                smallest = weights[at].topk(k, sorted=False).values.amin()
                floors[at] = float(torch.nextafter(smallest, torch.zeros_like(smallest)))
        return floors

    def _above(
        self, weights: Tensor, floors: list[float], scores: Tensor, places: list[int]
    ) -> list[tuple[Ids, Floats, Floats]]:
        """Of each row: ids of the tokens above its floor, ascending, with their weights and scores."""
        if self._on_cpu:
            found = []
            for at, floor in enumerate(floors):
                row = weights[at].numpy()
                ids = np.flatnonzero(row > row.dtype.type(floor))
                found.append((ids, row[ids], scores[places[at]].numpy()[ids]))
            return found
        # One transfer for the batch.
        limits = torch.tensor(floors, dtype=weights.dtype, device=self._device)
        row_of, id_of = (weights > limits[:, None]).nonzero(as_tuple=True)
        picked = torch.tensor(places, device=self._device)[row_of]
        ends = np.cumsum(torch.bincount(row_of, minlength=len(floors)).cpu().numpy())[:-1]
        parts = (id_of, weights[row_of, id_of], scores[picked, id_of])
        return list(zip(*(np.split(part.cpu().numpy(), ends) for part in parts), strict=True))

    def _logprobs(
        self, scores: Tensor, peaks: Tensor, rows: Sequence[SamplerRow], tokens: list[int]
    ) -> dict[int, TokenLogprobs]:
        """Of the rows that ask for them. Tokens of probability 0 are left out of the likeliest."""
        places = [at for at, row in enumerate(rows) if row.params.logprobs is not None]
        if not places:
            return {}
        picked = torch.tensor(places, device=self._device)
        weights = self._weights(scores, peaks, places, [1.0] * len(places))
        sums = self._sums(weights)
        told = {}
        for place, peak, total in zip(places, peaks[picked].tolist(), sums, strict=True):
            log_sum = peak + math.log(total)
            ids, values = self._leading(scores[place], min(rows[place].params.logprobs or 0, self._vocab))
            logprob = float(scores[place, tokens[place]]) - log_sum
            told[place] = TokenLogprobs(logprob, tuple(ids), tuple(value - log_sum for value in values))
        return told

    def _leading(self, scores: Tensor, count: int) -> tuple[list[int], list[float]]:
        """Ids and scores of the `count` likeliest tokens of one row, likeliest first, equal ones by id."""
        if not count:
            return [], []
        least = scores.topk(count, sorted=False).values.amin().clamp_min(torch.finfo(scores.dtype).min)
        ids = (scores >= least).nonzero().flatten()
        values = scores[ids].cpu().numpy()
        order = ranked(values, ids.cpu().numpy())[:count]
        return ids.cpu().numpy()[order].tolist(), values[order].astype(np.float64).tolist()

"""Log-probabilities of prompt tokens: what the model thought of each token that the client gave it."""

import numpy as np
import torch

from executor_svc.model.forward import Decoder
from executor_svc.model.linear import HEAD_MAX_ROWS
from executor_svc.plan import I32, Batch, Logprobs


def score_prompts(decoder: Decoder, hidden: torch.Tensor, *, batch: Batch) -> dict[int, Logprobs]:
    """Batch row -> scores of the prompt tokens that its fed tokens predict. `hidden` is `Decoder.hidden` of the batch."""
    scores = {}
    for place, row in enumerate(batch.prompt_logprob_rows.tolist()):
        targets = batch.prompt_targets[batch.prompt_target_start[place] : batch.prompt_target_start[place + 1]]
        first = int(batch.query_start[row])
        scores[row] = _score(
            decoder, hidden[first : first + len(targets)], targets=targets, num_top=int(batch.prompt_num_top[place])
        )
    return scores


def _score(decoder: Decoder, hidden: torch.Tensor, *, targets: I32, num_top: int) -> Logprobs:
    """Piece by piece, for a long chunk's logits would not fit in memory."""
    own, ids, tops = [], [], []
    for part, wanted in zip(
        torch.split(hidden, HEAD_MAX_ROWS), torch.split(torch.from_numpy(targets).long(), HEAD_MAX_ROWS), strict=True
    ):
        logprobs = torch.log_softmax(decoder.logits(part), dim=1).clamp_min(torch.finfo(torch.float32).min)
        own.append(logprobs.gather(1, wanted[:, None])[:, 0])
        best = torch.topk(logprobs, num_top, dim=1)
        ids.append(best.indices)
        tops.append(best.values)
    return Logprobs(
        token_ids=targets,
        logprobs=torch.cat(own).numpy(),
        top_token_ids=torch.cat(ids).numpy().astype(np.int32),
        top_logprobs=torch.cat(tops).numpy(),
    )

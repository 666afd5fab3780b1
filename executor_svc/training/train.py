"""Trains a draft head on dialogues: its distribution over the reduced vocabulary is pulled towards the target's, application by
application. Resumable: a checkpoint lies beside the dialogues."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file

from executor_svc.drafts.head_file import FORMAT, LAYER
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.load import OpenModel
from executor_svc.model.rope import rope_tables
from executor_svc.training.collect import token_counts
from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.module import DraftModule
from executor_svc.training.windows import Window, windows_of
from kernels.cpu.jit import processor_has

STEP_WEIGHTS: Final = (1.0, 0.7, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3)
"""What the loss of each application counts: without the first, no later one is ever reached."""
STATE_WEIGHT: Final = 1.0
"""What an application's distance from the target's states counts beside its distribution's: a state has more to say than a token
(EAGLE, arXiv:2401.15077, section 4)."""
RIVALS: Final = 4
"""Likeliest tokens of each position that the loss of a whole batch looks at."""
SAVE_EVERY_S: Final = 60.0
CLIP: Final = 1.0


@dataclass(frozen=True, slots=True)
class Frozen:
    """What is not trained: f32 [vocab, H] embedding, f32 [V, H] head rows, i64 [V] their ids."""

    embedding: torch.Tensor
    head: torch.Tensor
    ids: torch.Tensor


def frozen_of(opened: OpenModel, *, folder: Path, size: int) -> Frozen:
    """The target's embedding and head, the rows of the `size` tokens that stand most often in answers."""
    config, source = opened.config, opened.source
    embedding = torch.from_numpy(source.load("model.embed_tokens.weight"))
    head = embedding if config.tied else torch.from_numpy(source.load("lm_head.weight"))
    counts = token_counts(folder, vocab_size=config.vocab_size)
    most = np.lexsort((np.arange(len(counts)), -counts))[:size]
    ids = torch.from_numpy(np.sort(most).astype(np.int64))
    return Frozen(embedding, head[ids].contiguous(), ids)


def initial(opened: OpenModel) -> DraftModule:
    """The target's last layer behind a projection that takes the hidden state as it is. Raises UnsupportedModel for a mixture of
    experts: a head's layer has a plain feed-forward part."""
    config, source = opened.config, opened.source
    if config.moe is not None:
        raise UnsupportedModel(f"{config.family}: no draft head can be trained for a mixture of experts yet")
    module = DraftModule(config)
    last = f"model.layers.{config.num_layers - 1}."
    with torch.no_grad():
        for name, tensor in module.tensors().items():
            if name.startswith(LAYER):
                tensor.copy_(torch.from_numpy(source.load(name.replace(LAYER, last))))
        module.norm.copy_(torch.from_numpy(source.load("model.norm.weight")))
        eye = torch.eye(config.hidden_size)
        module.proj.weight.copy_(torch.cat((eye, torch.randn_like(eye) * 0.02), dim=1))
    return module


class Trainer:
    """One run over the windows of a folder."""

    def __init__(self, settings: TrainDraftSettings, opened: OpenModel, *, folder: Path) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.opened = opened
        self.folder = folder
        self.frozen = frozen_of(opened, folder=folder, size=settings.vocabulary)
        self.module = initial(opened)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.01)
        cos, sin = rope_tables(opened.config.rope, head_dim=opened.config.head_dim, num_positions=settings.window)
        self._cos, self._sin = (torch.from_numpy(table[: settings.window]) for table in (cos, sin))
        self._bf16 = processor_has("avx512bf16")
        self._head_half = self.frozen.head.bfloat16() if self._bf16 else self.frozen.head
        self.step = 0
        self.curve: list[dict[str, float]] = []

    def losses(self, window: Window) -> tuple[torch.Tensor, list[torch.Tensor], list[float]]:
        """The loss, each application's own, and how often each one's likeliest token is the target's: [depth] each. All among the
        tokens in question: see `_target`."""
        states = self._states(window)
        rivals, target = self._target(window.hidden[window.counted])
        best, hidden = target.argmax(-1), window.hidden[window.counted]
        scale = hidden.square().mean()
        each, right = [], []
        total = torch.zeros(())
        for index, state in enumerate(states):
            counted = state[window.counted]
            with self._half():
                logits = counted @ rivals.T
            logits = logits.float()
            loss = F.kl_div(logits.log_softmax(-1), target, log_target=True, reduction="batchmean")
            total = total + STEP_WEIGHTS[index] * (loss + STATE_WEIGHT * F.mse_loss(counted, hidden) / scale)
            each.append(loss.detach())
            right.append(float((logits.argmax(-1) == best).float().mean()))
        return total, each, right

    @torch.no_grad()
    def right(self, window: Window) -> list[float]:
        """How often each application's likeliest token of all that can be drafted is the target's: [depth]."""
        head = self.frozen.head
        best = (window.hidden[window.counted] @ head.T).argmax(-1)
        states = self._states(window)
        return [float(((state[window.counted].float() @ head.T).argmax(-1) == best).float().mean()) for state in states]

    def _states(self, window: Window) -> list[torch.Tensor]:
        num, embedded = window.token_ids.shape[1], self.frozen.embedding[window.token_ids]
        with self._half():
            states: list[torch.Tensor] = self.module(
                window.before, embedded, cos=self._cos[:num], sin=self._sin[:num], depth=self.settings.depth
            )
        return states

    @torch.no_grad()
    def _target(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Head rows [R, H] of the tokens in question anywhere in this batch, and the target's log-probabilities among them, f32
        [N, R]. The head is most of the work: a token that is nowhere among the RIVALS likeliest teaches little."""
        with self._half():
            likeliest = (hidden @ self._head_half.T).topk(RIVALS, dim=-1).indices
        rivals = self.frozen.head[torch.unique(likeliest)]
        return rivals, (hidden @ rivals.T).log_softmax(-1)

    def _half(self) -> torch.autocast:
        """Products in bfloat16 where the processor multiplies it: several times the rate."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self._bf16)

    def run(self) -> None:
        """Until all epochs are over."""
        settings = self.settings
        windows = windows_of(settings, folder=self.folder, held_out=False)
        num_steps = settings.epochs * max(1, len(windows) // settings.batch)
        self._resume()
        saved_s, columns = (
            time.monotonic(),
            (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        )
        with Progress(*columns) as progress:
            task = progress.add_task("training steps", total=num_steps, completed=self.step)
            while self.step < num_steps:
                window = windows.batch(self.step, size=settings.batch, seed=settings.seed)
                self._update(window, num_steps=num_steps)
                shown = self.curve[-1]
                progress.update(task, completed=self.step, description=f"loss {shown['loss']:.3f}, right {shown['right1']:.3f}")
                if time.monotonic() - saved_s > SAVE_EVERY_S:
                    self.save()
                    saved_s = time.monotonic()
        self.save()

    def _update(self, window: Window, *, num_steps: int) -> None:
        warm, settings = 50, self.settings
        share = min(1.0, (self.step + 1) / warm) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self.step / num_steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * share
        loss, each, right = self.losses(window)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.step += 1
        point = {"step": self.step, "tokens": int(window.counted.sum()), "loss": float(loss.detach())}
        self.curve.append(
            point
            | {f"loss{i + 1}": float(one) for i, one in enumerate(each)}
            | {f"right{i + 1}": one for i, one in enumerate(right)}
        )

    def save(self) -> None:
        """Head, optimiser and curve, each whole or not at all."""
        named = {name: tensor.detach().half().contiguous() for name, tensor in self.module.tensors().items()}
        named["token_ids"] = self.frozen.ids.int()
        metadata = {"format": FORMAT, "model_digest": self.opened.digest, "step": str(self.step)}
        _replace(self.folder / "head.safetensors", lambda path: save_file(named, path, metadata=metadata))
        kept = {f"p.{index}": value.detach().clone() for index, value in enumerate(self.module.parameters())}
        for index, state in enumerate(self.optimizer.state.values()):
            kept |= {f"m.{index}": state["exp_avg"], f"v.{index}": state["exp_avg_sq"]}
        _replace(self.folder / "checkpoint.safetensors", lambda path: save_file(kept, path, metadata={"step": str(self.step)}))
        _replace(self.folder / "curve.json", lambda path: path.write_text(json.dumps(self.curve)))

    def _resume(self) -> None:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return
        kept = load_file(path)
        self.curve = json.loads((self.folder / "curve.json").read_text())
        self.step = len(self.curve)
        with torch.no_grad():
            for index, value in enumerate(self.module.parameters()):
                value.copy_(kept[f"p.{index}"])
                if f"m.{index}" in kept:
                    state = {
                        "step": torch.tensor(float(self.step)),
                        "exp_avg": kept[f"m.{index}"],
                        "exp_avg_sq": kept[f"v.{index}"],
                    }
                    self.optimizer.state[value] = state


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_suffix(path.suffix + ".part")
    write(part)
    part.rename(path)

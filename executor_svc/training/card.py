"""What a trained head says of itself: recipe, data, loss curve, how often it is right on dialogues that it has never seen."""

from datetime import UTC, datetime

import torch

from executor_svc.training.shards import count_tokens
from executor_svc.training.train import RIVALS, Trainer
from executor_svc.training.windows import windows_of


def write_card(trainer: Trainer) -> None:
    """`card.md` and, where matplotlib is installed, `curve.png` beside the head."""
    settings, folder = trainer.settings, trainer.folder
    held_out = windows_of(settings, folder=folder, held_out=True)
    totals = [0.0] * settings.depth
    num_batches = 0
    with torch.no_grad():
        for first in range(0, len(held_out), settings.batch):
            right = trainer.right(held_out.of(list(range(first, min(first + settings.batch, len(held_out))))))
            totals = [total + one for total, one in zip(totals, right, strict=True)]
            num_batches += 1
    num_tokens = count_tokens(folder)
    places = ", ".join(f"{total / num_batches:.3f}" for total in totals)
    digest, opened = trainer.opened.digest[:16], trainer.opened
    lines = [
        f"# Draft head for {opened.name}",
        "",
        f"Trained by `drumline train-draft` on {datetime.now(UTC):%Y-%m-%d}, for model digest `{digest}`.",
        "It carries the licence of the model that it was distilled from.",
        "",
        f"* Data: {num_tokens:,} tokens of dialogues that the model wrote itself (seed {settings.seed});",
        "  questions at temperature 1.0, answers at 0, 0, 0.3 and 0.7 in turn, top-p 0.9.",
        f"* Recipe: {trainer.step} steps of {settings.batch} dialogues, {settings.epochs} epochs, AdamW,",
        f"  learning rate {settings.lr} (cosine), {settings.depth} applications, KL to the target",
        f"  over the tokens among the {RIVALS} likeliest anywhere in a batch, of the {settings.vocabulary} most frequent ones,",
        "  and the distance to its states.",
        f"* On {len(held_out)} dialogues that it never saw, its likeliest token is the target's likeliest of all",
        f"  {settings.vocabulary}, by application: {places}.",
        "",
        "![loss](curve.png)",
        "",
    ]
    (folder / "card.md").write_text("\n".join(lines))
    _plot(trainer)


def _plot(trainer: Trainer) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    steps = [point["step"] for point in trainer.curve]
    for index in range(trainer.settings.depth):
        axes.plot(
            steps, [point[f"right{index + 1}"] for point in trainer.curve], label=f"right, application {index + 1}", linewidth=0.8
        )
    axes.set_xlabel("step")
    axes.set_ylim(0, 1)
    axes.legend()
    figure.savefig(trainer.folder / "curve.png", dpi=110)

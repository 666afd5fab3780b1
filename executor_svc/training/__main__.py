"""`drumline train-draft`: distils a draft head for a model. See `config`."""

import logging
import os
import sys
from pathlib import Path

from drumline.settings import load
from executor_svc.training.config import TrainDraftSettings


def main(argv: list[str] | None = None) -> int:
    """Generates dialogues, trains, evaluates, writes head and card. Returns the exit status."""
    settings = load(TrainDraftSettings, section="train_draft", argv=sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname).1s %(message)s")
    folder = Path(settings.out)
    folder.mkdir(parents=True, exist_ok=True)
    if settings.stage in ("all", "generate"):
        from executor_svc.training.collect import collect

        collect(settings, folder=folder)
    if settings.stage in ("all", "train"):
        import torch

        from executor_svc.model.load import open_model
        from executor_svc.training.card import write_card
        from executor_svc.training.train import Trainer

        torch.set_num_threads(settings.num_threads or len(os.sched_getaffinity(0)))
        trainer = Trainer(settings, open_model(Path(settings.model) if settings.model else None), folder=folder)
        trainer.run()
        write_card(trainer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

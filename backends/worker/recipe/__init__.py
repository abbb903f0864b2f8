"""How the small model was made: its corpus, its tokenizer, its training, its evaluation.

    python -m backends.worker.recipe.corpus          # read some of what it learns
    python -m backends.worker.recipe.tokenizer       # the tokenizer's files, the same bytes on every run
    python -m backends.worker.recipe.train --minutes 60 --work DIR    # then copy DIR/model over small_model/
    python -m backends.worker.recipe.evaluate DIR/model               # needs `transformers`

Skills (`skills_*.py`) add turns to a `Talk`; `corpus.conversation` mixes them; `train.row` packs conversations into
rows of tokens. All of it but `train`, `decoder`, `optimizer` and `evaluate` runs without torch.
"""

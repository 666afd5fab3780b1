"""A `tokenizer.json` rebuilt from the metadata of a GGUF file: byte-level BPE.

The SentencePiece vocabularies (`tokenizer.ggml.model = llama`) are refused by name: their merges are not in the file, and a guess
that is right for most strings is worse than a refusal.
"""

from collections.abc import Sequence
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from executor_svc.model.errors import ModelError, UnsupportedModel

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Values of `tokenizer.ggml.token_type` that matter here."""

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Final = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
}
_ALIASES: Final = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_SINGLE_DIGITS: Final = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_PLAIN: Final = ("gpt-2", "gpt2", "mpt", "olmo")


def build_tokenizer(tokens: Sequence[str], *, token_types: Sequence[int], merges: Sequence[str], model: str, pre: str) -> Tokenizer:
    """The tokenizer whose ids are the positions in `tokens`.

    `model` and `pre` are `tokenizer.ggml.model` and `tokenizer.ggml.pre`; UnsupportedModel names one that is unknown. Text is taken
    as it is: no normalisation but qwen2's NFC, no bos or eos added.
    """
    if model != "gpt2":
        raise UnsupportedModel(f"tokenizer model {model!r} of a GGUF file is not supported; known: gpt2 (byte-level BPE)")
    if not tokens or len(set(tokens)) != len(tokens) or len(token_types) not in (0, len(tokens)):
        raise ModelError("the vocabulary of the GGUF file is empty, has a token twice, or its token types do not fit it")
    parted = [merge.split(" ") for merge in merges]
    if any(len(parts) != 2 for parts in parted):
        raise ModelError("a merge of the GGUF file is not a pair")
    pairs = [(left, right) for left, right in parted]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=_ALIASES.get(pre, pre) == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if _ALIASES.get(pre, pre) == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    control = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, token_types, strict=False) if kind == CONTROL
    ]
    user = [
        AddedToken(t, special=False, normalized=False) for t, kind in zip(tokens, token_types, strict=False) if kind == USER_DEFINED
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(user)
    return tokenizer


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merges apply."""
    if pre in _PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    name = _ALIASES.get(pre, pre)
    if name not in _SPLITS:
        known = sorted([*_PLAIN, *_SINGLE_DIGITS, *_SPLITS, *_ALIASES])
        raise UnsupportedModel(f"pre-tokenizer {pre!r} is not supported; known: {', '.join(known)}")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )

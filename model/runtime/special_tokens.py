"""The special tokens of a tokenizer: those around a text, and whether a token is one."""

from itertools import chain

from tokenizers import Tokenizer


def special_tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that are put before and after a single text, found with one of any ids.

    Raises ValueError for a tokenizer that changes a text's ids when it adds them.
    """
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    words = (tokenizer.decode([word]) for word in range(size))
    for text in chain("a", words):  # of letters that a vocabulary lacks there may be no ids
        if probe := tokenizer.encode(text, add_special_tokens=False).ids:
            break
    whole = tokenizer.encode(text, add_special_tokens=True).ids
    for start in range(len(whole) - len(probe) + 1):
        if whole[start : start + len(probe)] == probe:
            return whole[:start], whole[start + len(probe) :]
    raise ValueError("the tokenizer changes a text's ids when it adds special tokens")


def is_special(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token id is of a special token."""
    added = tokenizer.get_added_tokens_decoder().get(token)
    return added is not None and added.special

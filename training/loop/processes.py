"""The processes that torchrun started, which share each batch."""

import os


def process_rank() -> int:
    """The number of this process among those that torchrun started; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def num_processes() -> int:
    """How many processes torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))

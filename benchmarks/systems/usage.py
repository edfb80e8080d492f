"""What a process and its children use: memory and processor time, as Linux counts them."""

import psutil


def memory_mb(process: psutil.Process) -> dict[str, float]:
    """Resident MB of the tree, as ``pss`` and ``rss``.

    A page that n processes share counts 1/n in each one's PSS, and whole in each one's RSS.
    """
    members = [member.memory_full_info() for member in _tree(process)]
    return {
        "pss": sum(member.pss for member in members) / 1e6,
        "rss": sum(member.rss for member in members) / 1e6,
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of the tree since it started, user and system, ended children included."""
    return sum(sum(member.cpu_times()[:4]) for member in _tree(process))


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]

"""A run on a Ray cluster: Ray Data hands out shard numbers, and each actor runs `Runner` on them.

Input, artifact and output are paths that every node sees. Ray retries the shards of a node that is
lost; what is written once and whole is the commit protocol's work (`service.bulk.output`), so none
of Ray's own checkpoints are used.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from s2sent.service.bulk.embedders.local import LocalEmbedder, describe
from s2sent.service.bulk.input.files import scan, with_part_rows
from s2sent.service.bulk.input.first_rows import check_first_rows
from s2sent.service.bulk.job import BulkError, Job, Shard
from s2sent.service.bulk.output.folder import OutputFolder
from s2sent.service.bulk.output.writers import prepare
from s2sent.service.bulk.progress import Progress
from s2sent.service.bulk.runner import Runner

# More shards than actors, so that a slow node gets fewer of them.
SHARDS_PER_ACTOR = 4
POLL_SECONDS = 1.0


class ShardActor:
    """An encoder on one node, for one shard after another."""

    def __init__(self, job: Job, count: int) -> None:
        """Read the input through, as on a single machine: it must be the input of the manifest."""
        self._count = count
        files = scan(job.inputs, job.options, given=job.input_format)
        embedder = LocalEmbedder(job.artifact, job.options, threads=job.threads)
        output = OutputFolder(job.output, embedder.model, job.options, files)
        output.join()
        self._runner = Runner(output, embedder, job.null_errors, max_failed=job.max_failed)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Run the shard whose number is in ``batch``; the answer has the reason if it failed."""
        errors = [self._run(Shard(int(index), self._count)) for index in batch["id"]]
        return {"shard": batch["id"], "error": np.array(errors)}

    def _run(self, shard: Shard) -> str:
        try:
            self._runner.run(shard)
        except BulkError as error:  # it would fail again elsewhere, so Ray must not retry it
            return str(error)
        return ""


def run_on_ray(
    job: Job, address: str, progress: Progress, *, resume: bool, overwrite: bool
) -> OutputFolder:
    """Run all shards on the cluster at ``address`` ("local" starts one); raises BulkError."""
    import ray

    # Other nodes have another working folder.
    names = tuple(str(Path(name).resolve()) for name in job.inputs)
    job = replace(job, inputs=names, output=job.output.resolve(), artifact=job.artifact.resolve())
    model = describe(job.artifact)
    job.options.check(model)
    files = scan(job.inputs, job.options, given=job.input_format)
    job = with_part_rows(job, files)
    check_first_rows(files, job, resume=resume, overwrite=overwrite)
    output = OutputFolder(job.output, model, job.options, files)
    try:
        output.begin(Shard(), resume=resume, overwrite=overwrite)
        if not output.is_complete:
            prepare(output)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            with _reporting(output, progress):
                _map_shards(job, output)
            output.finish()
    finally:
        output.close()
        ray.shutdown()
    return output


def _map_shards(job: Job, output: OutputFolder) -> None:
    import ray.data

    cpus = [int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]]
    threads = job.threads or min((count for count in cpus if count), default=1)
    actors = max(1, sum(count // threads for count in cpus))
    shards = max(1, min(output.parts, SHARDS_PER_ACTOR * actors))
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    arguments = {"job": replace(job, threads=threads), "count": shards}
    # Items need no tasks that read them, which would wait for ever where actors have every core.
    numbers = ray.data.from_items([{"id": n} for n in range(shards)], override_num_blocks=shards)
    done = numbers.map_batches(
        ShardActor,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=1, max_size=actors, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=threads,
        fn_constructor_kwargs=arguments,
    )
    for row in done.iter_rows():
        if row["error"]:
            raise BulkError(str(row["error"]))


@contextmanager
def _reporting(output: OutputFolder, progress: Progress) -> Iterator[None]:
    """Show the parts that are committed on the shared storage, once a second."""
    ended = threading.Event()
    before = output.committed()
    count = {part: len(output.rows_of(part)) for part in range(output.parts)}
    progress.begin(
        rows=output.rows,
        rows_before=sum(count[part] for part in before),
        parts=output.parts,
        parts_before=len(before),
    )

    def poll() -> None:
        seen = set(before)
        while True:
            last = ended.wait(POLL_SECONDS)
            for part in output.committed() - seen:
                seen.add(part)
                record = output.record(part)
                progress.add(
                    rows=record.rows,
                    tokens=record.tokens,
                    truncated=record.truncated,
                    failed=record.failed,
                )
                progress.committed()
            if last:
                return

    thread = threading.Thread(target=poll, name="poll", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        progress.end()

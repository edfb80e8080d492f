"""A run on a real Ray cluster of two nodes, one of which is killed: the same bytes, each row once.

    make test-bulk     installs Ray in an environment of its own and runs this

Both nodes are processes of this machine (`ray.cluster_utils.Cluster`).
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from s2sent.service.bulk.job import Job, Options, OutputError
from s2sent.service.bulk.progress import Progress
from s2sent.service.bulk.ray_job import run_on_ray
from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.bulk_files import contents, write_texts

ROWS, ROWS_PER_SHARD = 4_000, 100


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head node without a core for actors, and two nodes with one each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_lost_node_costs_no_row_and_doubles_none(cluster: Cluster, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.txt", ROWS, random.Random(1))
    alone = tmp_path / "alone"
    command = ["embed", str(texts), "-o", str(alone), "--progress", "none"]
    command += ["--rows-per-shard", str(ROWS_PER_SHARD)]
    subprocess.run([sys.executable, "-m", "s2sent.service", *command], check=True)

    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    job = Job(
        (str(texts),),
        tmp_path / "ray",
        DEFAULT_ARTIFACT,
        Options(rows_per_shard=ROWS_PER_SHARD),
        threads=1,
    )
    killed: list[int] = []

    def kill_one_node() -> None:
        """In the middle: when some parts are committed and most are not."""
        records = tmp_path / "ray" / "_parts"
        while not over.is_set():
            done = len(list(records.glob("0*.json"))) if records.exists() else 0
            if done >= 8:
                cluster.remove_node(nodes[1], allow_graceful=False)
                killed.append(done)
                return
            time.sleep(0.05)

    over = threading.Event()
    killer = threading.Thread(target=kill_one_node)
    killer.start()
    try:
        output = run_on_ray(job, cluster.address, Progress(), resume=False, overwrite=False)
    finally:
        over.set()
        killer.join()
    assert killed, "the run was over before a node was killed"
    assert killed[0] < output.parts / 2
    sys.stdout.write(f"killed a node after {killed[0]} of {output.parts} parts\n")
    assert output.is_complete
    assert contents(tmp_path / "ray") == contents(alone)
    manifest = json.loads((tmp_path / "ray" / "_manifest.json").read_text())
    assert sum(part["rows"] for part in manifest["parts"]) == ROWS


def test_a_bad_row_is_named_by_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    texts = tmp_path / "texts.txt"
    texts.write_text("good\n\ngood\n")
    job = Job((str(texts),), tmp_path / "out", DEFAULT_ARTIFACT, threads=1)
    with pytest.raises(Exception, match="row 2: the text is empty") as caught:
        run_on_ray(job, cluster.address, Progress(), resume=False, overwrite=False)
    assert not isinstance(caught.value, OutputError)

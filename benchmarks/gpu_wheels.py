"""What a machine with an NVIDIA GPU and without an index needs, cut to one GPU's code, in parts.

    python -m benchmarks.gpu_wheels FOLDER [--architecture 90] [--python 3.12] [--part-mib 25]
    there, with all parts: cat FOLDER/*/part | tar xJ -C /tmp/site; export PYTHONPATH=/tmp/site:.

Parts are for a machine that takes so many bytes a call: carry FOLDER/1, then FOLDER/2 and so on.
onnxruntime-gpu has its kernels for six architectures, compressed already; the bytes of all but one
are set to zero. Not fetched, and to be there: torch, transformers, sentence-transformers,
tokenizers, onnx, uvloop, typer, prometheus-client, NVIDIA's libraries of CUDA 13 and cuDNN 9, wrk.
"""

import argparse
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = (
    *("onnxruntime-gpu==1.31.1", "fastapi", "starlette", "uvicorn", "httptools", "orjson", "h11"),
    *("pydantic", "pydantic-core", "pydantic-settings", "python-dotenv", "annotated-types"),
    *("typing-inspection", "annotated-doc", "click", "anyio", "idna"),
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64")
# A fat binary, a header with its length, holds entries: kind, header's length, length, ..., arch.
FATBIN = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHI")
MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, FATBIN.size)


def keep_architecture(library: bytearray, architecture: int) -> int:
    """Set the code for other architectures to zero, in place; returns how many bytes it was."""
    blanked, place = 0, library.find(MAGIC)
    while place >= 0:
        entry = place + FATBIN.size
        end = entry + FATBIN.unpack_from(library, place)[3] if entry <= len(library) else 0
        while entry + ENTRY.size <= end <= len(library):
            fields = ENTRY.unpack_from(library, entry)
            code, size = entry + fields[2], fields[3]
            if not fields[2] or code + size > end:
                break
            if fields[-1] != architecture:
                library[code : code + size] = bytes(size)
                blanked += size
            entry = code + size
        place = library.find(MAGIC, max(entry, place + 1))
    return blanked


def fetch(target: Path, python: str) -> None:
    """Install the packages for another Python on x86-64 into ``target``."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command += ["--constraint", "constraints.txt", "--target", str(target), *PACKAGES]
    subprocess.run(command, check=True)


def main() -> None:
    """Fetch, cut, pack and split; print the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", type=int, default=90, help="90: H100 and H200")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--part-mib", type=int, default=25)
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        site, packed = Path(scratch, "site"), Path(scratch, "site.tar.xz")
        fetch(site, options.python)
        for path in site.rglob("*providers_cuda.so"):
            library = bytearray(path.read_bytes())
            keep_architecture(library, options.architecture)
            path.write_bytes(library)
        with tarfile.open(packed, "w:xz", preset=6) as archive:
            archive.add(site, ".")
        with packed.open("rb") as file:
            for number in range(1, 100):
                if not (content := file.read(options.part_mib << 20)):
                    break
                part = options.folder / str(number) / "part"
                part.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(content)
                print(f"{len(content) / 2**20:6.1f} MiB  {part}")


if __name__ == "__main__":
    main()

"""A fake ONNX Runtime with GPU providers, whose sessions run on the CPU.

The results of the sessions are real. The options they were opened with are recorded, and what they
report about providers is set by the test.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

REAL_SESSION = ort.InferenceSession
REAL_VALUE = ort.OrtValue.ortvalue_from_numpy
GPU_PROVIDERS = ("CUDAExecutionProvider",)


class FakeRuntime:
    """An installation of onnxruntime-gpu; `install` puts it in the place of the real one.

    ``offered`` is what sessions say they got, by default what was asked for. ``placed`` moves an
    operator to another provider than the first one. ``failure`` is raised instead of a session.
    ``rewritten`` gives the graph that is opened in the place of another: one that a CPU can run.
    """

    def __init__(
        self,
        *,
        offered: Sequence[str] = (),
        placed: Mapping[str, str] | None = None,
        failure: Exception | None = None,
        rewritten: Callable[[bytes], bytes] = lambda graph: graph,
    ) -> None:
        self.offered = offered
        self.placed = dict(placed or {})
        self.failure = failure
        self._rewritten = rewritten
        self.sessions: list[FakeSession] = []
        self.libraries_loaded = 0
        self.running = 0  # runs that have begun and not ended, in any session
        self.most_at_once = 0
        self.bytes_placed = 0  # of arrays that were put on the GPU to stay there

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeRuntime":
        """Replaces ONNX Runtime's functions for the length of a test."""
        available = [*GPU_PROVIDERS, "CPUExecutionProvider"]
        monkeypatch.setattr(ort, "get_available_providers", lambda: available)
        monkeypatch.setattr(ort, "preload_dlls", self._preload)
        monkeypatch.setattr(ort, "InferenceSession", self._open)
        monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", self._place)
        return self

    def _place(self, array: Any, device: str = "cpu") -> ort.OrtValue:
        self.bytes_placed += array.nbytes if device == "cuda" else 0
        return REAL_VALUE(array)

    @property
    def session(self) -> "FakeSession":
        """The session of all blocks, the only one of an artifact without depths."""
        return self.sessions[0]

    def _preload(self) -> None:
        self.libraries_loaded += 1

    def _open(
        self, path: str | bytes, options: ort.SessionOptions, *, providers: Any, **keywords: Any
    ) -> "FakeSession":
        if self.failure:
            raise self.failure
        graph = self._rewritten(path) if isinstance(path, bytes) else path
        self.sessions.append(FakeSession(self, graph, options, dict(providers), keywords))
        return self.sessions[-1]


class FakeSession:
    """A session on the CPU that says it is on a GPU, and remembers how it was used."""

    def __init__(
        self,
        runtime: FakeRuntime,
        path: str | bytes,
        options: ort.SessionOptions,
        providers: dict[str, dict[str, str]],
        keywords: dict[str, Any],
    ) -> None:
        self._runtime = runtime
        self._real = REAL_SESSION(path, options, providers=["CPUExecutionProvider"])
        self.graph = path  # what was opened
        self.providers = providers  # what was asked for: options by provider, in order
        self.keywords = keywords
        self.bindings: list[FakeBinding] = []

    def get_outputs(self) -> list[Any]:
        return list(self._real.get_outputs())

    def get_providers(self) -> list[str]:
        return list(self._runtime.offered or self.providers)

    def get_provider_graph_assignment_info(self) -> list[SimpleNamespace]:
        """The real session's nodes, each on the provider where the test wants it."""
        nodes = [
            node
            for part in self._real.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        first = next(iter(self.providers))
        return [
            SimpleNamespace(
                ep_name=self._runtime.placed.get(node.op_type, first), get_nodes=lambda n=node: [n]
            )
            for node in nodes
        ]

    def io_binding(self) -> "FakeBinding":
        self.bindings.append(FakeBinding(self._real.io_binding()))
        return self.bindings[-1]

    def run_with_iobinding(self, binding: "FakeBinding") -> None:
        binding.calls.append("run")
        runtime = self._runtime
        runtime.running += 1
        runtime.most_at_once = max(runtime.most_at_once, runtime.running)
        time.sleep(0.001)  # so that another thread comes in if it can
        self._real.run_with_iobinding(binding.real)
        runtime.running -= 1


class FakeBinding:
    """A binding that notes the order of what is done with it."""

    def __init__(self, real: ort.IOBinding) -> None:
        self.real = real
        self.calls: list[str] = []

    def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
        self.calls.append(f"copy {name}")
        self.real.bind_ortvalue_input(name, value)

    def bind_output(self, name: str, device: str) -> None:
        self.calls.append(f"take {name} on {device}")
        self.real.bind_output(name, device)

    def synchronize_inputs(self) -> None:
        self.calls.append("wait for copies")
        self.real.synchronize_inputs()

    def copy_outputs_to_cpu(self) -> Any:
        return self.real.copy_outputs_to_cpu()

"""Reading early: the last block of a decoder works on the tokens that are read, and no others.

    attention of all tokens, state before -> [tokens] -> product, sum, norm, ... -> the token read
    the same                              -> the token read -> product, sum, norm, ...

Behind its attention a block treats each token by itself, so the choice of tokens, a Gather, can
stand before that: all other tokens' values there are read by nothing. It stays behind attention,
which looks at several tokens, and behind states that another block reads too.
"""

from collections.abc import Collection, Iterator

from onnx import GraphProto, NodeProto

from s2sent.model.export.nodes import constants_of, make_op, refill

READ = "/read"  # what the names of values of the chosen tokens end with

# What gives for each token [1, tokens, width] a result that depends on that token alone.
_TOKEN_WISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Neg", "Reciprocal", "Identity", "ReduceMean")
    + ("Erf", "Tanh", "Sigmoid", "Relu", "Gelu", "LayerNormalization")
)


def read_early(graph: GraphProto) -> int:
    """Move each choice of tokens as far ahead as it can stand, in place.

    ``graph`` is a traced `model.export.packed.pooled.PooledPacked`, or its front half, without
    branches. Returns how many operators work on fewer tokens now.
    """
    moved = 0
    for choice in [*_choices(graph)]:
        behind = _read_by(graph, choice)
        if behind:
            _move(graph, choice, behind)
            moved += len(behind)
    return moved


def _choices(graph: GraphProto) -> Iterator[NodeProto]:
    """The Gathers that choose tokens of packed values [1, tokens, width]."""
    for node in graph.node:
        if node.op_type == "Gather" and [each.i for each in node.attribute] == [1]:
            yield node


def _read_by(graph: GraphProto, choice: NodeProto) -> list[NodeProto]:
    """The token-wise operators whose results nothing but ``choice`` reads, in their order."""
    constant = constants_of(graph)
    readers: dict[str, list[str]] = {value.name: [""] for value in graph.output}
    readers[choice.input[1]] = [""]  # the choice itself stays as it is
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.output[0])
    found: list[NodeProto] = []
    known = {choice.output[0]}
    for node in reversed(graph.node):
        read = [reader for name in node.output for reader in readers.get(name, [""])]
        if known.issuperset(read) and _is_token_wise(node, constant):
            known.add(node.output[0])
            found.insert(0, node)
    return found


def _is_token_wise(node: NodeProto, constant: Collection[str]) -> bool:
    if node.op_type in ("MatMul", "Gemm"):
        return all(name in constant for name in node.input[1:])
    return node.op_type in _TOKEN_WISE


def _move(graph: GraphProto, choice: NodeProto, behind: list[NodeProto]) -> None:
    """Put ``choice`` before the operators ``behind`` it, which get names of their own."""
    index, result = choice.input[1], choice.output[0]
    constant = constants_of(graph)
    made = {name for node in behind for name in node.output}
    needed = [name for node in behind for name in node.input]
    chosen = [name for name in dict.fromkeys(needed) if name and name not in made | constant]
    names = {name: f"{name}{READ}" for name in (*chosen, *made)}
    nodes = [make_op("Gather", [name, index], names[name], axis=1) for name in chosen]
    for node in behind:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        nodes.append(node)
    nodes.append(make_op("Identity", [names[choice.input[0]]], result))
    moved = {names[name] for name in made}
    kept: list[NodeProto] = []
    for node in graph.node:
        if node.output[0] == result:
            kept += nodes
        elif node.output[0] not in moved:
            kept.append(node)
    refill(graph.node, kept)

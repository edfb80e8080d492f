"""Early exit: a graph with an input ``depth``, after which no further block is run.

    blocks 1, 2 -> If depth > 2: blocks 3, 4 -> If depth > 4: blocks 5, 6 -> pooling
                   else: as it was              else: as it was

Each If passes on the state of its last block and, for each block that is pooled, the small product
of its states with the pooling's rows (`model.network.selector.S2SentSelector.pool`). One pooling at
the end therefore serves all depths. ``depth`` has a default value, the full depth, so engines that
do not know this input feed the same inputs as before.

An output per depth with ONNX Runtime's run option ``only_execute_path_to_fetches`` would be
simpler, but the option is compiled into training builds only (ENABLE_TRAINING in session_state.h)
and has no effect in the published wheels.

Weights stay outside the branches and Ifs are never nested: ONNX Runtime 1.31.1 copies what a branch
holds, and packs weights for its kernels only one level above a branch.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from model.export.graph import replace_nodes
from model.export.packing import packed_state

DEPTH_INPUT = "depth"  # int64 scalar


def add_depth_input(model: ModelProto, exits: Mapping[int, Sequence[str]]) -> ModelProto:
    """Add the input ``depth``, which selects the pooled blocks, in place; returns the graph.

    ``exits`` has two depths or more, and for each the same number of block states that are pooled
    there, oldest first. ``model`` pools those of the largest depth, which becomes the default. A
    depth between two exits runs to the larger one.
    """
    graph = model.graph
    depths = sorted(exits)
    readers = [_reader(graph, block) for block in exits[depths[-1]]]
    rows = graph.node[readers[0]].input[0]
    products = {depth: [f"{block}_at_{depth}" for block in exits[depth]] for depth in depths}
    products[depths[-1]] = [graph.node[reader].output[0] for reader in readers]

    done = _constant(graph) | _needed(graph, [rows, *exits[depths[0]]])
    nodes = _pick(graph, done)
    for block, product in zip(exits[depths[0]], products[depths[0]], strict=True):
        nodes.append(_multiply(rows, block, product))
    for above, depth in pairwise(depths):
        stage = _needed(graph, exits[depth]) - done
        done |= stage
        run = _pick(graph, stage)
        there = dict(zip(exits[above], products[above], strict=True))
        for block, product in zip(exits[depth], products[depth], strict=True):
            old = there.get(block)
            run.append(_copy(old, product) if old else _multiply(rows, block, product))
        kept = dict(zip(products[depth], products[above], strict=True))
        if depth != depths[-1]:
            kept[_state(graph, exits[depth][-1])] = _state(graph, exits[above][-1])
        nodes += _deeper_than(above, run, kept)
    nodes += _pick(graph, set(range(len(graph.node))) - done - set(readers))
    replace_nodes(graph, nodes)
    graph.input.append(helper.make_tensor_value_info(DEPTH_INPUT, TensorProto.INT64, []))
    graph.initializer.append(helper.make_tensor(DEPTH_INPUT, TensorProto.INT64, [], [depths[-1]]))
    return model


def without_exits(model: ModelProto) -> ModelProto:
    """A copy without the input ``depth`` that runs every block: no Ifs, but what they hold."""
    whole = ModelProto()
    whole.CopyFrom(model)
    nodes: list[NodeProto] = []
    for node in whole.graph.node:
        if node.op_type != "If":
            nodes.append(node)
            continue
        branch = next(each.g for each in node.attribute if each.name == "then_branch")
        nodes += branch.node
        for value, name in zip(branch.output, node.output, strict=True):
            nodes.append(helper.make_node("Identity", [value.name], [name]))
    replace_nodes(whole.graph, nodes)
    inputs = [value for value in whole.graph.input if value.name != DEPTH_INPUT]
    del whole.graph.input[:]
    whole.graph.input.extend(inputs)
    return whole


def _reader(graph: GraphProto, block: str) -> int:
    """The position of the product of the pooling's rows with a block's state."""
    return next(
        position
        for position, node in enumerate(graph.node)
        if node.op_type == "MatMul" and node.input[1] == block
    )


def _state(graph: GraphProto, block: str) -> str:
    """What the next block reads: ``block``, its packed tokens, or what is cast for the pooling."""
    maker = next(node for node in graph.node if block in node.output)
    return maker.input[0] if maker.op_type == "Cast" else packed_state(graph, block)


def _needed(graph: GraphProto, values: Sequence[str]) -> set[int]:
    """The positions of the nodes that ``values`` are made by."""
    maker = {name: position for position, node in enumerate(graph.node) for name in node.output}
    needed: set[int] = set()
    names = [*values]
    while names:
        position = maker.get(names.pop())  # None for an input or a weight
        if position is not None and position not in needed:
            needed.add(position)
            names += graph.node[position].input
    return needed


def _constant(graph: GraphProto) -> set[int]:
    """The positions of the nodes that depend on no input, such as those that unfold weights."""
    known = {tensor.name for tensor in graph.initializer}
    constant: set[int] = set()
    for position, node in enumerate(graph.node):
        if known.issuperset(node.input):
            constant.add(position)
            known.update(node.output)
    return constant


def _pick(graph: GraphProto, positions: Collection[int]) -> list[NodeProto]:
    return [graph.node[position] for position in sorted(positions)]


def _deeper_than(
    depth: int, run: Sequence[NodeProto], kept: Mapping[str, str]
) -> tuple[NodeProto, ...]:
    """An If whose outputs ``kept`` come from ``run``, or are copies of the values they map to."""
    deeper, limit = f"deeper_than_{depth}", f"depth_{depth}"
    branches = {
        "then_branch": _branch(run, kept, "run"),
        "else_branch": _branch([_copy(old, new) for new, old in kept.items()], kept, "kept"),
    }
    return (
        helper.make_node("Constant", [], [limit], limit, value_int=depth),
        helper.make_node("Greater", [DEPTH_INPUT, limit], [deeper], deeper),
        helper.make_node("If", [deeper], [*kept], f"if_{deeper}", **branches),
    )


def _branch(nodes: Sequence[NodeProto], outputs: Collection[str], suffix: str) -> GraphProto:
    """A branch of ``nodes``, its outputs with a suffix, because the If itself uses the names."""
    inside = {name: f"{name}_{suffix}" for name in outputs}
    kinds = [ValueInfoProto(name=name) for name in inside.values()]  # to be inferred
    graph = helper.make_graph(nodes, suffix, [], kinds)
    for node in graph.node:
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    return graph


def _multiply(rows: str, block: str, product: str) -> NodeProto:
    return helper.make_node("MatMul", [rows, block], [product], product)


def _copy(old: str, new: str) -> NodeProto:
    return helper.make_node("Identity", [old], [new], new)

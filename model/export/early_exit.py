"""Early exit: a graph with an input ``depth``, after which no further block is run.

    blocks 1, 2 -> If depth > 2: blocks 3, 4 -> If depth > 4: blocks 5, 6 -> pooling
                   else: as it was              else: as it was

Each If passes on the state of its last block and, for each block that is pooled, the small product
of its states with the pooling's rows (`model.network.selector.S2SentSelector.pool`), in as many
slots as the full depth pools blocks. One pooling at the end therefore serves all depths. Where
exits have gates of their own, each pooling is in an If of its own, and one of them is run.
``depth`` has a default value, the full depth, so engines that do not know this input feed the same
inputs as before.

An output per depth with ONNX Runtime's run option ``only_execute_path_to_fetches`` would be
simpler, but the option is compiled into training builds only (ENABLE_TRAINING in session_state.h)
and has no effect in the published wheels.

Weights stay outside the branches and Ifs are never nested: ONNX Runtime 1.31.1 copies what a branch
holds, and packs weights for its kernels only one level above a branch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from s2sent.model.export.cpu.packing import packed_state
from s2sent.model.export.nodes import constants_of, dependents_of, make_op, makers_of, pick, refill

DEPTH_INPUT = "depth"  # int64 scalar
NO_ROWS = "no_rows_of_"  # how the empty results begin of the poolings that are not run
BLOCKS_IF = "if_deeper"  # how the names of the Ifs that hold blocks begin

Slots = list[tuple[str, str]]  # for each slot a block's state, and its product with the rows


@dataclass(frozen=True)
class OwnGates:
    """Exits with gates of their own: the results of each depth's pooling, of full depth too.

    ``shapes`` has the shape of a text's row in each result.
    """

    results: Mapping[int, Sequence[str]]
    shapes: Sequence[Sequence[int]]


def add_depth_input(
    model: ModelProto,
    exits: Mapping[int, Sequence[str]],
    gates: OwnGates | None = None,
    states: Mapping[int, str] | None = None,
) -> ModelProto:
    """Add the input ``depth``, which selects the pooled blocks, in place; returns the graph.

    ``exits`` has two depths or more, and for each the block states that are pooled there, oldest
    first. ``model`` pools those of the largest depth, which becomes the default, and with ``gates``
    those of each depth. A depth between two exits runs to the larger one. ``states`` are what the
    block after each smaller depth reads, where that is not the last pooled block, packed or not.
    """
    graph = model.graph
    _part_sums(graph)
    depths = sorted(exits)
    states = states or {depth: _state(graph, exits[depth][-1]) for depth in depths[:-1]}
    full = exits[depths[-1]]
    readers = {
        block: _reader(graph, block) for block in (chain(*exits.values()) if gates else full)
    }
    products = {block: graph.node[reader].output[0] for block, reader in readers.items()}
    rows = graph.node[readers[full[0]]].input[0]
    slots = {depth: _slots(exits[depth], depth, len(full)) for depth in depths[:-1]}
    slots[depths[-1]] = [(block, products[block]) for block in full]

    done = makers_of(graph, [*constants_of(graph), rows, *exits[depths[0]]])
    shared = makers_of(graph, full) - dependents_of(graph, states[depths[0]])  # by all blocks
    done |= shared
    nodes = [*pick(graph, done), *_fill(rows, slots[depths[0]], {})]
    for above, depth in pairwise(depths):
        stage = makers_of(graph, exits[depth]) - done
        done |= stage
        run = [*pick(graph, stage), *_fill(rows, slots[depth], dict(slots[above]))]
        kept = {new: old for (_, new), (_, old) in zip(slots[depth], slots[above], strict=True)}
        if depth != depths[-1]:
            kept[states[depth]] = states[above]
        nodes += _deeper_than(above, run, kept)
    done |= {*readers.values()}
    if gates:
        held = {depth: [products[block] for block in exits[depth]] for depth in depths}
        nodes += _pool_by_own_gates(graph, gates, held, done)
    nodes += pick(graph, set(range(len(graph.node))) - done)
    refill(graph.node, nodes)
    graph.input.append(helper.make_tensor_value_info(DEPTH_INPUT, TensorProto.INT64, []))
    graph.initializer.append(helper.make_tensor(DEPTH_INPUT, TensorProto.INT64, [], [depths[-1]]))
    return model


def _part_sums(graph: GraphProto) -> None:
    """Part each norm that gives the sum it is of, a block's state, from that sum, in place.

    A backbone that normalises ahead of its blocks has such norms where they are fused for a GPU,
    and an exit passes on one value, the state.
    """
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "SkipLayerNormalization" or len(node.output) < 4:
            nodes.append(node)
            continue
        first, second, weight, shift, *bias = node.input
        normed, *_, state = node.output
        inner = f"{state}/without_bias" if bias else state
        nodes.append(make_op("Add", [first, second], inner))
        if bias:
            nodes.append(make_op("Add", [inner, *bias], state))
        inputs = [state, weight, shift]
        norm = make_op("LayerNormalization", inputs, normed, axis=-1)
        norm.attribute.extend(each for each in node.attribute if each.name == "epsilon")
        nodes.append(norm)
    refill(graph.node, nodes)


def without_exits(model: ModelProto) -> ModelProto:
    """A copy without the input ``depth``, whose blocks are all outside of Ifs."""
    whole = ModelProto()
    whole.CopyFrom(model)
    nodes: list[NodeProto] = []
    for node in whole.graph.node:
        if not node.name.startswith(BLOCKS_IF):  # also a pooling's
            nodes.append(node)
            continue
        branch = next(each.g for each in node.attribute if each.name == "then_branch")
        nodes += branch.node
        for value, name in zip(branch.output, node.output, strict=True):
            nodes.append(helper.make_node("Identity", [value.name], [name]))
    refill(whole.graph.node, nodes)
    refill(whole.graph.input, [each for each in whole.graph.input if each.name != DEPTH_INPUT])
    return whole


def _pool_by_own_gates(
    graph: GraphProto, gates: OwnGates, held: Mapping[int, Sequence[str]], done: set[int]
) -> list[NodeProto]:
    """An If for each depth that pools there, and what they give together; adds to ``done``.

    One of the poolings is run; the others give no rows. ``held`` are the products that a depth's
    pooling reads. They are in the last slots, which have the names of the products at full depth.
    """
    depths = sorted(held)
    results = gates.results[depths[-1]]
    empty = {result: f"{NO_ROWS}{result}" for result in results}
    nodes = []
    for name, shape in zip(empty.values(), gates.shapes, strict=True):
        no_rows = helper.make_tensor("", TensorProto.FLOAT, [0, *shape], [])
        nodes.append(make_op("Constant", [], name, value=no_rows))
    inside = set[int]()
    for above, depth in zip([None, *depths], depths, strict=False):
        own = gates.results[depth]
        pooling = makers_of(graph, own) - done
        inside |= pooling
        in_slots = dict(zip(held[depth], held[depths[-1]][-len(held[depth]) :], strict=True))
        condition, wanted = _condition(above, depth if depth != depths[-1] else None)
        parts = [_part(result, depth) for result in results]
        run = [*pick(graph, pooling), *map(_copy, own, parts)]
        nodes += condition
        nodes.append(
            helper.make_node(
                "If",
                [wanted],
                parts,
                f"pool_by_{depth}",
                then_branch=_branch(run, parts, "run", in_slots),
                else_branch=_branch([*map(_copy, empty.values(), parts)], parts, "kept"),
            )
        )
    done |= inside
    for result in results:
        parts = [_part(result, depth) for depth in depths]
        nodes.append(make_op("Concat", parts, result, axis=0))
    return [*nodes, *_name_outputs(graph, gates, pick(graph, inside))]


def _name_outputs(
    graph: GraphProto, gates: OwnGates, poolings: Sequence[NodeProto]
) -> list[NodeProto]:
    """Drop the outputs of single exits, and copy those that ``poolings`` made under other names."""
    results = gates.results[max(gates.results)]
    others = {*chain.from_iterable(gates.results.values())} - {*results}
    made = {name for node in poolings for name in node.output} - {*results}
    copies = []
    for output in [*graph.output]:
        if output.name in others:
            graph.output.remove(output)
        elif output.name in made:  # the pooled vectors, where nothing is normalised
            copies.append(_copy(results[0], output.name))
    return copies


def _part(result: str, depth: int) -> str:
    return f"{result}_by_{depth}"


def _condition(above: int | None, depth: int | None) -> tuple[list[NodeProto], str]:
    """Nodes, and the value that is true where the encoder stops after ``above``, by ``depth``."""
    wanted = f"stops_by_{depth}"
    if depth is None:
        return [], _deeper(above)
    stops = make_op("Not", [_deeper(depth)], wanted)
    if above is None:
        return [stops], wanted
    between = f"{wanted}_after_{above}"
    both = make_op("And", [_deeper(above), wanted], between)
    return [stops, both], between


def _slots(blocks: Sequence[str], depth: int, count: int) -> Slots:
    """The blocks pooled at ``depth`` in the last slots; those before repeat the oldest block."""
    filled = [blocks[0]] * (count - len(blocks)) + [*blocks]
    return [(block, f"slot_{place}_at_{depth}") for place, block in enumerate(filled)]


def _fill(rows: str, slots: Slots, there: dict[str, str]) -> Iterator[NodeProto]:
    """Nodes that make the products in ``slots``, copies where the block's product is ``there``."""
    for block, product in slots:
        old = there.setdefault(block, product)
        made = make_op("MatMul", [rows, block], product)
        yield made if old == product else _copy(old, product)


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


def _deeper(depth: int | None) -> str:
    """The value that is true where the encoder runs deeper than ``depth``."""
    return f"deeper_than_{depth}"


def _deeper_than(
    depth: int, run: Sequence[NodeProto], kept: Mapping[str, str]
) -> tuple[NodeProto, ...]:
    """An If whose outputs ``kept`` come from ``run``, or are copies of the values they map to."""
    deeper, limit = _deeper(depth), f"depth_{depth}"
    branches = {
        "then_branch": _branch(run, kept, "run"),
        "else_branch": _branch([_copy(old, new) for new, old in kept.items()], kept, "kept"),
    }
    return (
        make_op("Constant", [], limit, value_int=depth),
        make_op("Greater", [DEPTH_INPUT, limit], deeper),
        helper.make_node("If", [deeper], [*kept], f"if_{deeper}", **branches),
    )


def _branch(
    nodes: Sequence[NodeProto],
    outputs: Collection[str],
    suffix: str,
    moved: Mapping[str, str] | None = None,
) -> GraphProto:
    """A branch of ``nodes``, its outputs with a suffix, because the If itself uses the names.

    Inputs that are ``moved`` are read where they moved to.
    """
    inside = {name: f"{name}_{suffix}" for name in outputs}
    kinds = [ValueInfoProto(name=name) for name in inside.values()]  # to be inferred
    graph = helper.make_graph(nodes, suffix, [], kinds)
    read = {**(moved or {}), **inside}
    for node in graph.node:
        node.input[:] = [read.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    return graph


def _copy(old: str, new: str) -> NodeProto:
    return make_op("Identity", [old], new)

"""PackedMultiHeadAttention, for which only a GPU has a kernel, by standard operators.

It reads where the texts end only: two tokens see each other where as many texts end before one as
before the other.
"""

from onnx import GraphProto, ModelProto, helper, parser

from s2sent.model.export.gpu.unpadded import OPERATOR

REFERENCE = "reference"  # the domain

# [tokens, width] each, in floats; ``ends`` is 0 and then the token behind each text.
BODY = """
<opset_import: ["" : 18], domain: "{domain}">
{operator} (query, key, value, ends) => (output)
{{
    split = Constant <value_ints: ints = [0, {heads}, -1]> ()
    joined = Constant <value_ints: ints = [0, -1]> ()
    one = Constant <value_ints: ints = [1]> ()
    zero = Constant <value_int: int = 0> ()
    step = Constant <value_int: int = 1> ()
    lowest = Constant <value_float: float = -3.0e38> ()
    nothing = Constant <value_float: float = 0.0> ()
    queries = Reshape (query, split)
    keys = Reshape (key, split)
    values = Reshape (value, split)
    q = Transpose <perm: ints = [1, 0, 2]> (queries)
    k = Transpose <perm: ints = [1, 2, 0]> (keys)
    v = Transpose <perm: ints = [1, 0, 2]> (values)
    sizes = Shape (queries)
    at_head = Constant <value_int: int = 2> ()
    head = Gather (sizes, at_head)
    width = Cast <to: int = 1> (head)
    scale = Sqrt (width)
    tokens = Gather (sizes, zero)
    line = Range (zero, tokens, step)
    column = Unsqueeze (line, one)
    wide = Cast <to: int = 7> (ends)
    passed = LessOrEqual (wide, column)
    counted = Cast <to: int = 7> (passed)
    text = ReduceSum (counted, one)
    other = Transpose (text)
    same = Equal (text, other)
    hidden = Where (same, nothing, lowest)
    products = MatMul (q, k)
    scores = Div (products, scale)
    seen = Add (scores, hidden)
    shares = Softmax <axis: int = -1> (seen)
    mixed = MatMul (shares, v)
    back = Transpose <perm: ints = [1, 0, 2]> (mixed)
    output = Reshape (back, joined)
}}
"""


def with_reference(graph: bytes) -> bytes:
    """The graph with the function in place of the operator; the same bytes where it has none."""
    model = ModelProto.FromString(graph)
    if not (heads := set(_replaced(model.graph))):
        return graph
    (count,) = heads
    body = BODY.format(domain=REFERENCE, operator=OPERATOR, heads=count)
    model.functions.append(parser.parse_function(body))
    model.opset_import.append(helper.make_opsetid(REFERENCE, 1))
    content: bytes = model.SerializeToString()
    return content


def _replaced(graph: GraphProto) -> list[int]:
    """The heads of each operator, whose node is one of the function afterwards."""
    heads = []
    for node in graph.node:
        if node.op_type == OPERATOR:
            given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            assert given.keys() == {"num_heads"}  # by the root of a head's width, then
            heads.append(given["num_heads"])
            node.domain = REFERENCE
            node.input[:] = [*node.input[:3], node.input[5]]
            del node.attribute[:]
    return heads

"""Small graphs with unexpected results of the original tool's grammar, driver and editors."""

from collections.abc import Callable

import numpy as np
from classic_cases import ClassicCase
from classic_nodes import SMALL, Cases, const, node, placeholder, ramp, untyped_node

from quantkit.formats.graphdef.tensors import with_typed_field
from quantkit.ir.graph import Graph, Node, Versions, constant
from quantkit.ir.tensor import DType, Shape, Tensor

GRAMMAR = (
    *(
        "remove_device(",
        "remove_device()",
        "remove_device(a=b",
        "remove_device(a=b,",
        "remove_device(a=b ",
        "remove_device(a=b,c",
    ),
    *("remove_device(a", "remove_device(a=", "remove_device(a=)", "remove_device(a='b')", 'remove_device(a="x', "nope"),
    *("remove_device nope(a=1", "remove_device(a=b\"')remove_device", 'remove_device(a=b"")', "remove_device(a=b'\" )"),
    *(
        'remove_device(a="x"")',
        "remove_device(,)",
        "remove_device(, a=b)",
        "remove_device(a=b c=d)",
        "remove_device,remove_device",
    ),
    *(
        'remove_device(a="x\\',
        'remove_device(a="x\\"',
        "",
        "  ",
        ",",
        "remove_device(a=b,)",
        "remove_device(a=b )",
        "remove_device (a=b)",
    ),
    *(
        'remove_device(a="x\ny")',
        "remove_device(a = b)",
        "remove_device(a=b:c)",
        "remove_device\\\nremove_device",
        "\tremove_device\n",
    ),
    *(
        'remove_device(a="")',
        'rename_node(old_node_name="a",new_node_name="b,(c)")',
        'rename_node(old_node_name=a,new_node_name="b\\"c")',
    ),
    *("remove_device(a=b)remove_device(c=d)x", "remove_device(unknown=1)", "Remove_Device"),
)


def _grammar() -> Cases:
    cases = Cases("grammar", "")
    for number, text in enumerate(GRAMMAR):
        case = ClassicCase(f"quirk/grammar/{number}", Graph.of(SMALL, versions=Versions(21)), "x", "y", text)
        cases.cases.append(case)
    return cases


def _driver() -> Cases:
    cases = Cases("driver", "remove_device")
    broken = (*SMALL, node("z", "Relu", "gone", "^lost:0"))
    cases.add("dangling", broken, "y")
    cases.add("dangling_and_cut", broken, "y", "strip_unused_nodes")
    cases.add("errors_of_the_check_are_not_ignored", broken, "y", "remove_device(ignore_errors=true)")
    cases.add("error_ignored", SMALL, "y", "remove_nodes(ignore_errors=true) remove_device")
    cases.add(
        "error_ignored_in_capitals", SMALL, "y", "remove_nodes(ignore_errors=TRUE,ignore_errors=zz) remove_device"
    )
    cases.add("error_ignored_by_number", SMALL, "y", "remove_nodes(ignore_errors=1)")
    cases.add("error_ignored_unclear", SMALL, "y", "remove_device(ignore_errors=Yes)")
    cases.add("unknown_not_ignored", SMALL, "y", "remove_device nope(ignore_errors=true)")
    cases.add("versions_kept_by_defaults", SMALL, "y", "add_default_attributes")
    cases.add("versions_kept_by_ignored_error", SMALL, "y", "remove_nodes(ignore_errors=true)")
    cases.add("versions_lost", SMALL, "y", "add_default_attributes remove_device")
    cases.add("unknown_op", (*SMALL, node("z", "Odd", "y")), "z", "add_default_attributes")
    cases.add("spaces_in_names", SMALL, "y, a", "strip_unused_nodes")
    cases.add("no_inputs", SMALL, "y", "strip_unused_nodes remove_nodes(op=Identity)", inputs="")
    return cases


def _numbers() -> Cases:
    cases = Cases("numbers", "")
    for number, text in enumerate(("x", '" 5 "', "99999999999", "-5", '"+5"', '""', "5.0", "05", '"5 5"')):
        cases.add(
            f"steps_{number}", (ramp("w", 16), node("y", "Relu", "w")), "y", f"round_weights(num_steps={text})", ""
        )
    for number, text in enumerate(("x", '"1.5x"', "0x10", '" 1.5 "', "1e50", "inf", "1_0", '""', ".5", '"+1"', "1e-3")):
        cases.add(f"range_{number}", SMALL, "y", f"quantize_nodes(input_min=0,input_max={text})")
    for number, text in enumerate(("yes", "True", "0", '" true"', "true,if_default=true")):
        cases.add(f"truth_{number}", SMALL, "y", f"set_device(device=a,if_default={text})")
    cases.add("twice", SMALL, "y", "quantize_weights(minimum_size=1,minimum_size=2)")
    cases.add("size", SMALL, "y", "fold_constants(max_constant_size_in_bytes=99999999999999999999)")
    return cases


def _strip() -> Cases:
    cases = Cases("strip", "strip_unused_nodes")
    two = (
        placeholder("x", 2),
        const("k", [1, 2]),
        node("a", "Add", "x", "k"),
        node("y", "Relu", "a:0"),
        node("z", "Relu", "x", "^k"),
    )
    cases.add("cut_at_a_sum", two, "y", inputs="a")
    cases.add("cut_with_a_port", two, "y:0", inputs="a:0")
    cases.add("unused_input", two, "y", inputs="a,x,z")
    cases.add("unknown_input", two, "y", inputs="a,nope")
    cases.add("unknown_output", two, "nope")
    cases.add("unknown_output_that_is_input", two, "nope,y", inputs="x,nope")
    cases.add("waits", two, "z")
    cases.add("dangling", (*two, node("b", "Relu", "gone")), "b")
    fallback = (
        const("k", 1),
        node("x", "PlaceholderWithDefault", "k", T=None, dtype=DType.FLOAT, shape=Shape(())),
        node("y", "Relu", "x"),
    )
    cases.add("fallback_fed", fallback, "y")
    cases.add("fallback_not_fed", fallback, "y", inputs="")
    for number, options in enumerate(
        (
            *(
                "type=int32",
                "type=DT_INT32",
                "type=int32,type=float",
                'type=""',
                'shape="1,2"',
                "shape=5",
                'shape="1,x"',
                'shape=""',
            ),
            *(
                'shape="-1,2"',
                'shape="1, 2"',
                'shape="1,,2"',
                "shape=1,shape=2",
                "name=a,type_for_name=quint8",
                "name=b,type_for_name=quint8",
            ),
            *(
                'name=a,shape_for_name="3"',
                'name=a,type_for_name=half,shape_for_name="2,2"',
                "name=a",
                "type_for_name=float",
            ),
            *(
                "shape_for_name=1",
                'type=bool,name=a,type_for_name=string,shape_for_name="7"',
                "type=int64,shape=3,other=4",
            ),
            *(
                "name=a,name=a,type_for_name=half,type_for_name=bool,shape_for_name=1,shape_for_name=2",
                "name=a,type_for_name=odd",
            ),
        )
    ):
        cases.add(f"options_{number}", two, "y", f"strip_unused_nodes({options})", inputs="a")
        cases.add(f"options_unread_{number}", two, "y", f"strip_unused_nodes({options})")
    return cases


def _remove() -> Cases:
    cases = Cases("remove", "remove_nodes(op=Identity)")
    chain = (
        placeholder("x"),
        node("a", "Identity", "x"),
        node("b", "Identity", "a:0"),
        node("c", "Relu", "b", "^a"),
        node("d", "Relu", "c", "^b"),
    )
    cases.add("chain", chain, "d")
    cases.add("kept_ends", chain, "b:0,d", inputs="a:0")
    cases.add(
        "controls_lost",
        (placeholder("x"), placeholder("g"), node("a", "Identity", "x", "^g"), node("y", "Relu", "a")),
        "y",
    )
    split = untyped_node("s", "Split", "k", "x", T=DType.FLOAT, num_split=2)
    ports = (
        placeholder("x", 2, 2),
        const("k", 1, dtype=np.int32),
        split,
        node("a", "Identity", "s:1"),
        node("y", "Relu", "a"),
        node("z", "Relu", "s"),
    )
    cases.add("port", ports, "y,z")
    cases.add("several_outputs", ports, "y,z", "remove_nodes(op=Split,max_inputs=2)")
    pair = (placeholder("x"), const("k", 1), node("a", "Add", "x", "k"), node("y", "Relu", "a"), node("z", "Relu", "k"))
    cases.add("two_inputs", pair, "y", "remove_nodes(op=Add,max_inputs=2)")
    cases.add("two_inputs_one_read_elsewhere", pair, "y,z", "remove_nodes(op=Add,max_inputs=2)")
    cases.add("one_input_only", pair, "y", "remove_nodes(op=Add)")
    cases.add(
        "same_input_twice",
        (placeholder("x"), node("a", "Add", "x", "x"), node("y", "Relu", "a")),
        "y",
        "remove_nodes(op=Add,max_inputs=2)",
    )
    cases.add("any_op", chain, "d", 'remove_nodes(op="*")')
    cases.add("one_of_two_ops", chain, "d", 'remove_nodes(op="Identity|Relu")')
    cases.add("absent", chain, "d", "remove_nodes(op=Odd)")
    cases.add("no_op", chain, "d", "remove_nodes(max_inputs=1)")
    cases.add("no_inputs_at_all", chain, "d", "remove_nodes(op=Identity,max_inputs=0)")
    cases.add("bad_number", chain, "d", "remove_nodes(op=Identity,max_inputs=x)")
    cases.add(
        "control_first",
        (placeholder("x"), placeholder("g"), node("a", "Identity", "^g", "^x", "x"), node("y", "Relu", "a")),
        "y",
    )
    cases.add(
        "similar_names",
        (
            placeholder("x"),
            placeholder("x2"),
            node("a", "Identity", "x2"),
            node("b", "Add", "a", "x"),
            node("c", "Identity", "x"),
            node("y", "Add", "b", "c"),
        ),
        "y",
        inputs="x,x2",
    )
    cases.add(
        "two_readers_of_one",
        (placeholder("x"), node("a", "Identity", "x"), node("b", "Identity", "x"), node("y", "Add", "a", "b")),
        "y",
    )
    cases.add("everything", (placeholder("x"), node("a", "Identity", "x")), "", inputs="")
    loop = (
        placeholder("x"),
        node("m", "Merge", "x", "n", N=2),
        node("a", "Identity", "m"),
        node("n", "NextIteration", "a"),
        node("y", "Relu", "m"),
    )
    cases.add("loop", loop, "y")
    cycle = (
        placeholder("x"),
        node("a", "Identity", "b"),
        node("b", "Relu", "a"),
        node("i", "Identity", "x"),
        node("y", "Relu", "i"),
    )
    cases.add("cycle", cycle, "y")
    return cases


def _editors() -> Cases:
    cases = Cases("editors", "")
    many = [placeholder("x")]
    many += [node(f"node{number}", "Relu", many[-1].name) for number in range(70)]
    cases.add("obfuscate_many", many, "node69", "obfuscate_names")
    cases.add("obfuscate_port", many[:4], "node2:0", "obfuscate_names", inputs="x:0")
    numbered = (placeholder("x"), node("0", "Relu", "x"), node("1", "Relu", "0:0", "^x"), node("2", "Relu", "1"))
    cases.add("obfuscate_numbers", numbered, "1", "obfuscate_names")
    cases.add("obfuscate_dangling", (placeholder("x"), node("a", "Relu", "gone")), "a", "obfuscate_names")
    names = (
        placeholder("x"),
        node("a", "Relu", "x"),
        node("b", "Add", "a:0", "a", "^a"),
        node("ab", "Relu", "b", "^a:0"),
    )
    for number, options in enumerate(
        (
            "old_node_name=a,new_node_name=c",
            "old_node_name=a,new_node_name=b",
            "old_node_name=z,new_node_name=c",
            "old_node_name=a",
            "old_node_name=a,new_node_name=a",
        )
    ):
        cases.add(f"rename_node_{number}", names, "ab", f"rename_node({options})")
    for number, options in enumerate(
        (
            *(
                "old_attribute_name=T,new_attribute_name=U",
                "old_attribute_name=T,new_attribute_name=U,op_name=Relu,op_name=Add",
            ),
            *("old_attribute_name=T,new_attribute_name=T", 'old_attribute_name=T,new_attribute_name=U,op_name="*"'),
            *(
                "old_attribute_name=T",
                "old_attribute_name=T,old_attribute_name=U,new_attribute_name=V",
                "new_attribute_name=V",
            ),
        )
    ):
        cases.add(f"rename_attribute_{number}", names, "ab", f"rename_attribute({options})")
    nodes = (placeholder("x"), node("a", "Relu", "x", U=DType.INT32, V=1))
    cases.add(
        "rename_attribute_onto_another", nodes, "a", "rename_attribute(old_attribute_name=T,new_attribute_name=U)"
    )
    for number, options in enumerate(
        (
            "",
            "attribute_name=T,attribute_name=U",
            "attribute_name=U,op_name=Relu",
            "attribute_name=U,op_name=Add,op_name=Relu",
            'attribute_name=U,op_name="*"',
        )
    ):
        cases.add(f"remove_attribute_{number}", nodes, "a", f"remove_attribute({options})")
    for number, options in enumerate(
        ("old_op_name=Relu,new_op_name=Odd", "old_op_name=Relu", 'old_op_name="*",new_op_name=Odd')
    ):
        cases.add(f"rename_op_{number}", names, "ab", f"rename_op({options})")
    placed = (placeholder("x"), node("a", "Relu", "x", device="/gpu:0"), node("b", "Relu", "a"))
    for number, options in enumerate(
        ('device="/cpu:0"', 'device="/cpu:0",if_default=true', "if_default=1", "device=a,device=b", "")
    ):
        cases.add(f"set_device_{number}", placed, "b", f"set_device({options})")
    cases.add("remove_device", placed, "b", "remove_device")
    cases.add("remove_controls", names, "ab", "remove_control_dependencies")
    axis = const("k", 1, dtype=np.int32)
    joined = (
        placeholder("x", 2, 2),
        axis,
        node("c", "ConcatV2", "x", "x", "k", N=2, Tidx=DType.INT32),
        node("y", "ConcatV2", "x", "c", "k", "^x", N=2, Tidx=DType.INT32),
    )
    cases.add("concat", joined[:3], "c", "backport_concatv2")
    cases.add("concat_with_a_control_input", joined, "y", "backport_concatv2")
    return cases


def _arrays() -> Cases:
    cases = Cases("arrays", "backport_tensor_array_v3")
    size, index = const("n", 2, dtype=np.int32), const("i", 0, dtype=np.int32)
    nodes = (
        *(size, index, placeholder("x", 3)),
        untyped_node("t", "TensorArrayV3", "n", dtype=DType.FLOAT),
        node("w", "TensorArrayWriteV3", "t", "i", "x", "t:1"),
        untyped_node("g", "TensorArrayGradV3", "t", "t:1", source=b"grad"),
        untyped_node("r", "TensorArrayReadV3", "t:0", "i", "w", "^t", dtype=DType.FLOAT),
        untyped_node("h", "TensorArrayGatherV3", "g", "i", "g:1", dtype=DType.FLOAT),
        untyped_node("s", "TensorArraySizeV3", "t", "t:1"),
        untyped_node("z", "TensorArrayCloseV3", "t"),
        untyped_node("q", "TensorArrayConcatV3", "t", "w", dtype=DType.FLOAT),
    )
    cases.add("all", nodes, "r")
    return cases


def _merge() -> Cases:
    cases = Cases("merge", "merge_duplicate_nodes")
    twins = (
        placeholder("x"),
        node("a", "Relu", "x"),
        node("b", "Relu", "x:0"),
        node("c", "Add", "a", "b"),
        node("d", "Add", "b", "a"),
        node("e", "Sub", "c", "d", "^b", "^a"),
    )
    cases.add("twins", twins, "e")
    cases.add("twin_is_an_end", twins, "b,e")
    cases.add("twin_is_an_end_with_a_port", twins, "b:0,e:0")
    cases.add(
        "chain",
        (
            placeholder("x"),
            *(
                node(f"{name}{number}", op, f"{source}{number}" if source != "x" else "x")
                for number in range(4)
                for name, op, source in (("a", "Relu", "x"), ("b", "Tanh", "a"), ("c", "Neg", "b"))
            ),
            node("y", "AddN", "c0", "c1", "c2", "c3", N=4),
        ),
        "y",
    )
    halves = Tensor.of(np.full((4,), 0.5, np.float32))
    packed = constant("k", halves)

    unpacked = Node("l", "Const", attrs={"dtype": DType.FLOAT, "value": with_typed_field(halves)})
    cases.add(
        "stored_otherwise",
        (packed, unpacked, packed.with_(name="m"), node("y", "AddN", "k", "l", "m", N=3)),
        "y",
        inputs="",
    )
    drawn = untyped_node("r", "RandomUniform", "k", T=DType.INT32, dtype=DType.FLOAT, seed=1)
    cases.add(
        "random",
        (
            const("k", [2], dtype=np.int32),
            drawn,
            drawn.with_(name="s"),
            drawn.with_(name="t"),
            node("y", "AddN", "r", "s", "t", N=3),
        ),
        "y",
        inputs="",
    )
    cases.add(
        "devices",
        (placeholder("x"), node("a", "Relu", "x", device="/cpu:0"), node("b", "Relu", "x"), node("c", "Add", "a", "b")),
        "c",
    )
    cases.add("unknown_op", (placeholder("x"), node("a", "Odd", "x")), "a")
    cases.add(
        "attribute_names_do_not_count",
        (
            placeholder("x"),
            node("a", "Relu", "x"),
            untyped_node("b", "Relu", "x", U=DType.FLOAT),
            node("c", "Add", "a", "b"),
        ),
        "c",
    )
    cases.add(
        "controls_count",
        (
            placeholder("x"),
            node("a", "Relu", "x", "^x"),
            node("b", "Relu", "x"),
            node("c", "Relu", "x", "^x:0"),
            node("y", "AddN", "a", "b", "c", N=3),
        ),
        "y",
    )
    cases.add(
        "fed_twins",
        (placeholder("x"), placeholder("y"), placeholder("z"), node("a", "AddN", "x", "y", "z", N=3)),
        "a",
        inputs="x,z",
    )
    texts = Node("s", "Const", attrs={"dtype": DType.STRING, "value": Tensor.of(np.array([b"one", b"two"], object))})
    cases.add("strings", (texts, texts.with_(name="t"), untyped_node("y", "StringJoin", "s", "t", N=2)), "y", inputs="")
    cases.add(
        "after_removal",
        (
            placeholder("x"),
            node("a", "Identity", "x"),
            node("b", "Identity", "x"),
            node("c", "Relu", "a"),
            node("d", "Relu", "b"),
            node("y", "Add", "c", "d"),
        ),
        "y",
        "remove_nodes(op=Identity) merge_duplicate_nodes",
    )
    return cases


def _order() -> Cases:
    cases = Cases("order", "sort_by_execution_order")
    nodes = (
        node("y", "Add", "b", "a"),
        node("b", "Relu", "x"),
        node("a", "Relu", "x", "^k"),
        const("k", 1),
        placeholder("x"),
        node("d", "Add", "y", "y"),
    )
    cases.add("backwards", nodes, "d")
    cases.add("unknown_input", (placeholder("x"), node("a", "Relu", "x", "^gone:1")), "a")
    cases.add("cycle", (placeholder("x"), node("a", "Add", "x", "b"), node("b", "Relu", "a")), "b")
    loop = (
        placeholder("x"),
        untyped_node("n", "NoOp"),
        node("m", "Merge", "x", "i", "^n", N=2),
        node("i", "NextIteration", "r"),
        node("r", "Relu", "m"),
        node("y", "Exit", "r"),
    )
    cases.add("loop", loop, "y")
    return cases


QUIRKS: tuple[Callable[[], Cases], ...] = (
    _grammar,
    _driver,
    _numbers,
    _strip,
    _remove,
    _editors,
    _arrays,
    _merge,
    _order,
)

"""Reading HLO: each form in which XLA writes a collective, and the collectives in compiled JAX programs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from mtfc.backends.common.devices import devices
from mtfc.backends.hlo import FLOPS, UNKNOWN, WIRE, collectives, cycles, work


def traffic(count: int, elements: int, bytes: int) -> dict[str, int]:
    return {"count": count, "elements_per_device": elements, "bytes_per_device": bytes}


def entry(*instructions: str, before: str = "") -> str:
    body = "".join(f"  {instruction}\n" for instruction in instructions)
    return f"HloModule m, num_partitions=8\n\n{before}ENTRY %main (p: f32[4,8]) -> f32[4,8] {{\n{body}}}\n"


PARAMETERS = (
    "%p = f32[4,8]{1,0} parameter(0)",
    "%q = bf16[3]{0} parameter(1)",
    "%s = f32[] parameter(2)",
)
PAIRS = "replica_groups={{0,4},{1,5},{2,6},{3,7}}"


@pytest.mark.parametrize(
    ("instruction", "kind", "expected"),
    [
        (f"%r = f32[4,8]{{1,0}} all-reduce(%p), {PAIRS}, to_apply=%add", "all_reduce", (1, 32, 128)),
        (f"%r = f32[4,8]{{1,0:T(8,128)S(1)}} all-reduce(%p), {PAIRS}", "all_reduce", (1, 32, 128)),
        (f"%r = f32[] all-reduce(%s), {PAIRS}, to_apply=%add", "all_reduce", (1, 1, 4)),
        (f"%r = (f32[4,8]{{1,0}}, /*index=1*/bf16[3]{{0}}) all-reduce(%p, %q), {PAIRS}", "all_reduce", (1, 35, 134)),
        ("%r = f32[4,8]{1,0} all-reduce(f32[4,8]{1,0} %p), replica_groups={}", "all_reduce", (1, 32, 128)),
        ("r = f32[4,8]{1,0} all-reduce(p), replica_groups=[4,2]<=[2,4]T(1,0)", "all_reduce", (1, 32, 128)),
        (f"%r = f32[8,8]{{1,0}} all-gather(%p), {PAIRS}, dimensions={{0}}", "all_gather", (1, 32, 128)),
        (f"%r = f32[2,8]{{1,0}} reduce-scatter(%p), {PAIRS}, dimensions={{0}}", "reduce_scatter", (1, 32, 128)),
        (f"%r = (bf16[3]{{0}}, bf16[3]{{0}}) all-to-all(%q, %q), {PAIRS}", "all_to_all", (1, 6, 12)),
        ("%r = f32[4,8]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,4},{4,1}}", "permute", (1, 32, 128)),
    ],
)  # fmt: skip
def test_collective(instruction: str, kind: str, expected: tuple[int, int, int]) -> None:
    assert collectives(entry(*PARAMETERS, instruction)) == {kind: traffic(*expected)}


@pytest.mark.parametrize(
    "attributes",
    [
        "all-reduce(%p), replica_groups={{0},{1},{2},{3}}",
        "all-gather(%p), replica_groups=[8,1]<=[8]",
        "all-gather(%p), replica_groups=mesh['a'=1,'b'=8] {'a'}",
        "collective-permute(%p), source_target_pairs={{0,0},{1,1}}",
    ],
)
def test_groups_of_one_device_communicate_nothing(attributes: str) -> None:
    assert collectives(entry(*PARAMETERS, f"%r = f32[4,8]{{1,0}} {attributes}")) == {}


def test_asynchronous_collectives_count_once() -> None:
    started = (
        f"%a = f32[4,8]{{1,0}} all-reduce-start(%p), {PAIRS}, to_apply=%add",
        "%b = f32[4,8]{1,0} all-reduce-done(%a)",
        f"%c = (f32[4,8]{{1,0}}, f32[8,8]{{1,0}}) all-gather-start(%p), {PAIRS}, dimensions={{0}}",
        "%d = f32[8,8]{1,0} all-gather-done(%c)",
    )
    expected = {"all_reduce": traffic(1, 32, 128), "all_gather": traffic(1, 32, 128)}
    assert collectives(entry(*PARAMETERS, *started)) == expected


WRAPPED = f"""\
%wrapped (x: bf16[3]) -> bf16[3] {{
  %x = bf16[3]{{0}} parameter(0)
  ROOT %moved = bf16[3]{{0}} all-to-all(%x), {PAIRS}
}}

"""


def test_collectives_wrapped_in_asynchronous_computations_count_once() -> None:
    started = (
        "%a = ((bf16[3]{0}), bf16[3]{0}, u32[]) async-start(%q), calls=%wrapped",
        "%b = ((bf16[3]{0}), bf16[3]{0}, u32[]) async-update(%a), calls=%wrapped",
        "%c = bf16[3]{0} async-done(%b), calls=%wrapped",
    )
    assert collectives(entry(*PARAMETERS, *started, before=WRAPPED)) == {"all_to_all": traffic(1, 3, 6)}


CHAINED = "".join(
    f"""\
%kernel.{number} (x: bf16[3]) -> bf16[6] {{
  %x = bf16[3]{{0}} parameter(0)
  ROOT %g.{number} = bf16[6]{{0}} all-gather(%x), channel_id=7, {PAIRS}, frontend_attributes={{chain_id="0"}}
}}

"""
    for number in range(3)
)


def test_collectives_that_a_chain_of_kernels_carries_out_count_once() -> None:
    """The kernels have the form of an all-gather that the TPU compiler runs beside dots."""
    kernels = [
        f"%k.{number} = bf16[6]{{0}} fusion(%q), kind=kCustom, calls=%kernel.{number}" for number in range(3)
    ]
    assert collectives(entry(*PARAMETERS, *kernels, before=CHAINED)) == {"all_gather": traffic(1, 3, 6)}


def test_chains_of_kernels_may_share_a_channel() -> None:
    """As the all-reduces of one `psum` after another: each chain is a collective, in one computation or in several."""
    again = CHAINED.replace("kernel.", "other.").replace('chain_id="0"', 'chain_id="1"')
    kernels = [
        f"%{name}.{number} = bf16[6]{{0}} fusion(%q), kind=kCustom, calls=%{name}.{number}"
        for name in ("kernel", "other")
        for number in range(3)
    ]
    kernels[5:] = [KERNEL.format(5), *kernels[5:]]
    text = entry(*PARAMETERS, *kernels, before=CHAINED + again)
    assert collectives(text) == {"all_gather": traffic(2, 6, 12)}


KERNEL = (
    '%k{0} = f32[4,8]{{1,0}} fusion(%p), kind=kLoop, calls=%f, backend_config={{"estimated_cycles":"{0}"}}'
)
GATHER = f"all-gather-start(%p), {PAIRS}, dimensions={{0}}"


LOOP = f"""\
%body (x: f32[5]) -> f32[5] {{
  %x = f32[5]{{0}} parameter(0)
  ROOT %sum = f32[5]{{0}} all-reduce(%x), {PAIRS}, to_apply=%add
}}

%outer (x: f32[5]) -> f32[5] {{
  %x = f32[5]{{0}} parameter(0)
  ROOT %w = f32[5]{{0}} while(%x), condition=%c, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}

"""


def test_loops_multiply() -> None:
    loop = (
        '%w = f32[5]{0} while(%p), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"7"}}'
    )
    assert collectives(entry(*PARAMETERS, loop, before=LOOP)) == {"all_reduce": traffic(21, 105, 420)}


@pytest.mark.parametrize("times", [0, 1])
def test_loops_that_do_not_run_send_nothing(times: int) -> None:
    loop = f'%w = f32[5]{{0}} while(%p), condition=%c, body=%outer, backend_config={{"known_trip_count":{{"n":"{times}"}}}}'
    sent = collectives(entry(*PARAMETERS, loop, before=LOOP))
    assert sent == {"all_reduce": traffic(3 * times, 15 * times, 60 * times)}


def test_a_loop_of_unknown_length_counts_as_one_iteration_in_the_work() -> None:
    text = entry(*PARAMETERS, "%w = f32[5]{0} while(%p), condition=%c, body=%outer", before=LOOP)
    ((item, _, amounts),) = work(text)
    assert (item.kind, amounts["count"], amounts[UNKNOWN] > 0) == ("all_reduce", 3, True)


def test_a_loop_of_unknown_length_that_communicates_is_refused() -> None:
    with pytest.raises(ValueError, match="how often a loop runs"):
        collectives(entry(*PARAMETERS, "%w = f32[5]{0} while(%p), condition=%c, body=%outer", before=LOOP))


def test_computations_behind_the_entry_do_not_count() -> None:
    """XLA of JAX 0.12 leaves computations behind the entry that nothing calls."""
    text = entry(
        *PARAMETERS, f"%a = f32[8,8] {GATHER}", KERNEL.format(5), "%b = f32[8,8] all-gather-done(%a)"
    )
    for behind in (WRAPPED, "%dead () -> s32[2] {\n  ROOT %i = s32[2]{0} iota(), iota_dimension=0\n}\n\n"):
        both = f"{text}\n{behind}"
        assert collectives(both) == {"all_gather": traffic(1, 32, 128)}
        assert cycles(both) == 5
        assert work(both) == work(text) != []


def test_a_program_without_collectives() -> None:
    assert collectives(entry(*PARAMETERS, "ROOT %r = f32[4,8]{1,0} add(%p, %p)")) == {}


# Collectives that XLA compiles on the CPU from JAX code, on two processors of `rows` and four of `cols`.

Program = Callable[..., Any]


def compiled(program: Program, in_specs: Any, out_specs: Any, *dtypes: Any) -> dict[str, dict[str, int]]:
    """Return the collectives of a program on arrays of 8 x 16."""
    mesh = jax.make_mesh((2, 4), ("rows", "cols"), (AxisType.Auto,) * 2, devices=devices(8))
    function = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=in_specs, out_specs=out_specs))
    arguments = [jax.ShapeDtypeStruct((8, 16), dtype) for dtype in dtypes]
    return collectives(function.lower(*arguments).compile().as_text())


SPLIT = P("rows", "cols")
SUMMED = P(None, "cols")


def test_xla_combines_a_tuple_into_one_all_reduce() -> None:
    found = compiled(
        lambda a, b: lax.psum((a, b[:, 0]), "rows"), SPLIT, (SUMMED, P("cols")), "float32", "float32"
    )
    assert found == {"all_reduce": traffic(1, 16 + 4, 80)}


def test_xla_combines_independent_all_reduces_of_one_dtype() -> None:
    def both(a: Any, b: Any, c: Any) -> Any:
        return lax.psum(a, "rows"), lax.psum(b, "rows"), lax.psum(c, "rows")

    found = compiled(both, SPLIT, SUMMED, "float32", "float32", "int32")
    assert found == {"all_reduce": traffic(2, 48, 192)}


def test_xla_keeps_an_all_reduce_that_is_then_sliced() -> None:
    def sliced(a: Any) -> Any:
        return lax.dynamic_slice_in_dim(lax.psum(a, "rows"), lax.axis_index("rows") * 2, 2, axis=0)

    assert compiled(sliced, SPLIT, SPLIT, "float32") == {"all_reduce": traffic(1, 16, 64)}


def test_xla_promotes_bf16_on_the_cpu() -> None:
    """The elements are as the program has them; their bytes are not."""
    assert compiled(lambda a: lax.psum(a, "rows"), SPLIT, SUMMED, "bfloat16") == {
        "all_reduce": traffic(1, 16, 64)
    }


def test_xla_folds_collectives_of_constants() -> None:
    found = compiled(lambda a: a + lax.psum(jnp.ones((4, 4)), "rows"), SPLIT, SPLIT, "float32")
    assert found == {}


def test_loop_of_jax() -> None:
    def loop(a: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return carry + lax.psum(row, "cols"), lax.all_gather(
                row, "cols", axis=0, tiled=True, to="invarying"
            )

        start = lax.pcast(jnp.zeros(4), "rows", to="varying")
        return lax.scan(body, start, a)

    found = compiled(loop, SPLIT, (P("rows"), P("rows")), "float32")
    assert found == {"all_reduce": traffic(4, 16, 64), "all_gather": traffic(4, 16, 64)}


HEADER = """HloModule m, num_partitions=8

FileNames
1 "user.py"
2 "1 library.py"

FunctionNames
1 "main"
2 "helper"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5 column=4 end_column=4}
2 {file_name_id=2 function_name_id=2 line=70 end_line=70 column=4 end_column=4}

StackFrames
"""


@pytest.mark.parametrize(
    "stacks",
    [
        "1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n",
        "1 {file_location_id=1}\n2 {file_location_id=2 parent_frame_id=1}\n",
    ],
)
def test_operands_of_combined_collectives_have_lines_of_their_own(stacks: str) -> None:
    """Groups may be axes of a mesh, or parts of axes: here each has 2 of 8 devices."""
    instructions = (
        "%r = (f32[4,8]{1,0}, bf16[3]{0}) all-reduce(%p, %q), "
        "replica_groups=mesh['a'=4,'b'=2] {'a':(2)2}, metadata={op_name=\"x\" stack_frame_id=1}",
        '%a = f32[4,8]{1,0} get-tuple-element(%r), index=0, metadata={op_name="x" stack_frame_id=2}',
        "%b = bf16[3]{0} get-tuple-element(%r), index=1",
        "%c = f32[16,8]{1,0} all-gather(%p), replica_groups=mesh['a'=4,'b'=2] {'a'}, dimensions={0}",
    )
    text = entry(*PARAMETERS, *instructions).replace(
        "HloModule m, num_partitions=8\n", HEADER + stacks + "\n"
    )
    inner, outer = ("1 library.py", 70), ("user.py", 5)
    assert {
        (item.kind, item.groups, item.members, frames, sent["bytes_per_device"], sent[WIRE])
        for item, frames, sent in work(text)
        if "bytes_per_device" in sent
    } == {
        ("all_reduce", 4, 2, (inner, outer), 128, 128.0),
        ("all_reduce", 4, 2, (outer,), 6, 6.0),
        ("all_gather", 2, 4, (), 128, 384.0),
    }


def _expected(number: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


COUNTED = f"""\
%body (x: f32[5]) -> f32[5] {{
  %x = f32[5]{{0}} parameter(0)
  %sum = f32[5]{{0}} all-reduce(%x), {PAIRS}, to_apply=%add, {_expected(1000)}
  ROOT %y = f32[5]{{0}} fusion(%sum), kind=kLoop, calls=%fused, {_expected(7)}
}}

%until (x: f32[5]) -> pred[] {{
  %x = s32[] parameter(0)
  %six = s32[]{{:T(256)}} constant(6)
  ROOT %lt = pred[] compare(%x, %six), direction=LT
}}

"""


@pytest.mark.parametrize("counter", ["s32", "u32"])
def test_cycles_of_loops_count_once_per_iteration_and_collectives_not_at_all(counter: str) -> None:
    instructions = (
        f"%r = f32[4,8]{{1,0}} convolution(%p, %p), dim_labels=bf_io->bf, {_expected(100)}",
        "%w = f32[5]{0} while(%r), condition=%until, body=%body",
        f"%z = f32[4,8]{{1,0}} all-reduce(%p), {PAIRS}, to_apply=%add, {_expected(5)}",
    )
    before = COUNTED.replace("s32", counter)
    assert cycles(entry(*PARAMETERS, *instructions, before=before)) == 100 + 6 * 7


def test_a_loop_without_a_known_end_is_an_error() -> None:
    before = COUNTED.replace("compare(%x, %six), direction=LT", "custom-call(%x)")
    with pytest.raises(ValueError, match="how often"):
        cycles(entry(*PARAMETERS, "%w = f32[5]{0} while(%p), condition=%until, body=%body", before=before))


# FLOPs


def flops(text: str) -> int:
    return round(sum(amounts["count"] for item, _, amounts in work(text) if item.kind == FLOPS))


def convolution(x: Any, w: Any, **options: Any) -> Any:
    names = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, w, dimension_numbers=names, **options)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x @ w, [(8, 16), (16, 4)]),
        (lambda x, w: jnp.einsum("bhld,bhmd->bhlm", x, w), [(3, 2, 8, 5), (3, 2, 7, 5)]),
        (lambda x: x.sum(0), [(2048, 16)]),
        (partial(convolution, window_strides=(1, 1), padding="VALID"), [(2, 4, 9, 8), (6, 4, 3, 3)]),
        (partial(convolution, window_strides=(2, 3), padding="SAME"), [(2, 4, 9, 8), (6, 4, 3, 3)]),
        (partial(convolution, window_strides=(1, 2), padding=((2, 1), (0, 3)), lhs_dilation=(2, 3)),
         [(2, 4, 9, 8), (6, 4, 3, 3)]),
        (partial(convolution, window_strides=(2, 1), padding="SAME", rhs_dilation=(2, 3)), [(2, 4, 9, 8), (6, 4, 3, 3)]),
        (partial(convolution, window_strides=(1, 1), padding="SAME", feature_group_count=2), [(2, 4, 9, 8), (6, 2, 3, 3)]),
        (partial(convolution, window_strides=(7, 4), padding=((5, 0), (9, 1)), lhs_dilation=(3, 6)),
         [(2, 4, 9, 8), (6, 4, 11, 7)]),
    ],
)  # fmt: skip
def test_flops_are_those_of_xla_where_nothing_loops(function: Program, shapes: list[tuple[int, ...]]) -> None:
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    compiled = jax.jit(function).lower(*arguments).compile()
    expected = compiled.cost_analysis()["flops"]
    assert expected > 0
    assert flops(compiled.as_text()) == pytest.approx(expected, rel=0.02)


def test_flops_of_a_loop_count_in_every_iteration() -> None:
    def loop(x: Any, w: Any) -> Any:
        return lax.scan(lambda h, each: (jnp.tanh(h @ each), None), x, w)[0]

    arguments = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((5, 16, 16), "float32")
    found = flops(jax.jit(loop).lower(*arguments).compile().as_text())
    assert found == pytest.approx(5 * 2 * 8 * 16 * 16, rel=0.05)


def test_the_tpu_compilers_dots_count_as_dots() -> None:
    """A dimension of batches becomes a dilated dimension of space, whose zeros are not multiplied."""
    before = (
        "%a = bf16[8,128,2,32]{3,2,1,0} parameter(0)",
        "%b = bf16[8,128,2,32]{3,2,1,0} parameter(1)",
    )
    dot = (
        "%c = bf16[8,2,128,128]{2,3,1,0:T(8,128)(2,1)} convolution(%a, %b),"
        " window={size=8x2 stride=7x1 lhs_dilate=8x2}, dim_labels=0b1f_0o1i->01bf"
    )
    assert flops(entry(*before, dot)) == 2 * 8 * 2 * 128 * 128 * 32
    gemm = (
        '%d = (bf16[8,16]{1,0}, s8[4]{0}) custom-call(%p, %p), custom_call_target="__cublas$gemm", backend_config='
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    )
    assert flops(entry(*PARAMETERS, gemm)) == 2 * 8 * 16 * 8


def test_integers_compute_no_flops() -> None:
    x = jax.ShapeDtypeStruct((64,), "uint32")
    assert flops(jax.jit(lambda x: x * 3 + (x >> 2)).lower(x).compile().as_text()) == 0


@pytest.mark.parametrize("width", ["8", "8e4m3fn"])
def test_small_floats_send_their_bytes(width: str) -> None:
    text = entry(f"%e = f{width}[16]{{0}} parameter(0)", f"%r = f{width}[16]{{0}} all-reduce(%e), {PAIRS}")
    assert collectives(text) == {"all_reduce": traffic(1, 16, 16)}


def test_of_branches_the_largest_counts() -> None:
    def either(chosen: Any, x: Any) -> Any:
        return lax.switch(chosen, [lambda x: x, lambda x: x @ x @ x, lambda x: x @ x], x)

    compiled = jax.jit(either).lower(
        jax.ShapeDtypeStruct((), "int32"), jax.ShapeDtypeStruct((8, 8), "float32")
    )
    assert flops(compiled.compile().as_text()) == 2 * 2 * 8**3

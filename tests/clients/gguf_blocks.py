#!/usr/bin/env python3
"""GGUF files that the `gguf` package writes, against what it says that their blocks mean.

    gguf_blocks.py PROGRAM FOLDER

Makes an environment with the package below FOLDER; exits 77 (skipped) when that is not possible.
Writes an OLMoE of random blocks of every type that is read, packs it, and compares each value of
the packed store with the package's dequantisers: all are equal.
"""
import os
import pathlib
import struct
import subprocess
import sys
import venv

PACKAGES = ["gguf>=0.17,<1", "numpy>=1.26"]
INSTALL_S = 240
HIDDEN, WIDE, EXPERTS, VOCAB = 256, 512, 3, 40


def environment(folder):
    """Runs this script again with the package; 77 when it cannot be had."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    probe = [python, "-c", "import gguf"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        install = [python, "-m", "pip", "install", "-q", "--retries", "1", *PACKAGES]
        try:
            subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)
        except subprocess.SubprocessError as error:
            print("skipped: the gguf package cannot be installed:", error)
            sys.exit(77)
    os.execv(python, [str(python), *sys.argv, "inside"])


def random_blocks(numpy, gguf, generator, kind, shape):
    """Bytes of random blocks whose scales are ordinary numbers."""
    block, width = gguf.GGML_QUANT_SIZES[kind]
    rows = generator.integers(0, 256, (*shape[:-1], shape[-1] // block, width), dtype=numpy.uint8)
    kinds = gguf.GGMLQuantizationType
    halves = {kinds.Q4_0: [0], kinds.Q4_1: [0, 2], kinds.Q5_0: [0], kinds.Q5_1: [0, 2],
              kinds.Q8_0: [0], kinds.Q4_K: [0, 2], kinds.Q5_K: [0, 2], kinds.Q6_K: [208]}
    for offset in halves.get(kind, []):
        scales = generator.normal(0, 0.01, rows.shape[:-1]).astype(numpy.float16)
        rows[..., offset:offset + 2] = scales[..., None].view(numpy.uint8)
    if kind == kinds.MXFP4:
        rows[..., 0] = generator.integers(110, 130, rows.shape[:-1], dtype=numpy.uint8)
    return rows.reshape(*shape[:-1], -1)


def write_model(numpy, gguf, path):
    """Returns the values of each tensor, as the package reads its blocks."""
    kinds = gguf.GGMLQuantizationType
    generator = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "olmoe")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    plain = {"output_norm.weight": [HIDDEN], "blk.0.attn_norm.weight": [HIDDEN],
             "blk.0.ffn_norm.weight": [HIDDEN], "blk.0.attn_q_norm.weight": [HIDDEN],
             "blk.0.attn_k_norm.weight": [HIDDEN], "blk.0.ffn_gate_inp.weight": [EXPERTS, HIDDEN]}
    blocks = {"token_embd.weight": (kinds.Q4_0, [VOCAB, HIDDEN]),
              "output.weight": (kinds.Q5_0, [VOCAB, HIDDEN]),
              "blk.0.attn_q.weight": (kinds.Q4_K, [HIDDEN, HIDDEN]),
              "blk.0.attn_k.weight": (kinds.Q5_K, [HIDDEN, HIDDEN]),
              "blk.0.attn_v.weight": (kinds.Q6_K, [HIDDEN, HIDDEN]),
              "blk.0.attn_output.weight": (kinds.Q8_0, [HIDDEN, HIDDEN]),
              "blk.0.ffn_gate_exps.weight": (kinds.Q4_1, [EXPERTS, WIDE, HIDDEN]),
              "blk.0.ffn_up_exps.weight": (kinds.Q5_1, [EXPERTS, WIDE, HIDDEN]),
              "blk.0.ffn_down_exps.weight": (kinds.MXFP4, [EXPERTS, HIDDEN, WIDE])}
    values = {}
    for name, shape in plain.items():
        values[name] = generator.normal(0, 1, shape).astype(numpy.float32)
        writer.add_tensor(name, values[name])
    for name, (kind, shape) in blocks.items():
        data = random_blocks(numpy, gguf, generator, kind, shape)
        values[name] = gguf.quants.dequantize(data, kind).astype(numpy.float32)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def matrix_values(numpy, gguf, store, offset, kind, rows, columns):
    """A matrix of a store as float32, and the bytes that it takes (docs/file-formats.md)."""
    count = rows * columns

    def numbers(dtype, at, length):
        return numpy.frombuffer(store, dtype, length, offset + at)

    if kind == 0:
        return numbers(numpy.float32, 0, count), 4 * count
    kinds = gguf.GGMLQuantizationType
    blocks = {8: kinds.Q4_1, 9: kinds.Q5_1, 10: kinds.Q4_K, 11: kinds.Q5_K, 12: kinds.Q6_K}
    if kind in blocks:
        elements, width = gguf.GGML_QUANT_SIZES[blocks[kind]]
        size = count // elements * width
        data = numbers(numpy.uint8, 0, size).reshape(rows, -1)
        return gguf.quants.dequantize(data, blocks[kind]).reshape(-1), size
    groups = count // 32
    if kind == 3:
        codes, after = numbers(numpy.int8, 0, count).astype(numpy.float32), count
    else:  # of each 16 elements eight in the low halves of eight bytes, eight in the high ones
        bytes_ = numbers(numpy.uint8, 0, count // 2).reshape(-1, 1, 8)
        codes, after = numpy.concatenate([bytes_ & 15, bytes_ >> 4], 1).reshape(-1), count // 2
    after = (after + 63) // 64 * 64
    if kind == 6:
        scales = numpy.exp2(numbers(numpy.uint8, after, groups).astype(numpy.float32) - 127)
        codes, after = numpy.array(E2M1, numpy.float32)[codes], after + groups
    else:
        scales, after = numbers(numpy.float32, after, groups), after + 4 * groups
        if kind == 4:
            codes = codes.astype(numpy.float32) - 8
    return (codes.reshape(-1, 32) * scales[:, None]).reshape(-1), after


def read_store(numpy, gguf, path):
    """Dense tensors by name and experts by number, as float32, and the types that are there."""
    store = path.read_bytes()
    extents = struct.unpack_from("<8Q", store, 48)
    names, dense, experts = extents[2], extents[4:6], extents[6:8]
    tensors, types = {}, set()
    for at in range(dense[0], dense[0] + dense[1], 80):
        offset, _, _, name, length, kind, rank, _, *shape = struct.unpack_from("<QQQQIIII4q", store,
                                                                              at)
        text = store[names + name:names + name + length].decode()
        rows, columns = (1, shape[0]) if rank == 1 else shape[:2]
        tensors[text], _ = matrix_values(numpy, gguf, store, offset, kind, rows, columns)
        types.add(kind)
    for at in range(experts[0], experts[0] + experts[1], 56):
        offset, _, _, _, expert, hidden, wide, *parts = struct.unpack_from("<QQQiiqq3B", store, at)
        for part, kind in enumerate(parts):
            shape = (hidden, wide) if part == 2 else (wide, hidden)
            tensors[(expert, part)], size = matrix_values(numpy, gguf, store, offset, kind, *shape)
            offset += (size + 63) // 64 * 64
            types.add(kind)
    return tensors, types


NAMES = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp"}


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if sys.argv[-1] != "inside":
        environment(folder)
    import gguf
    import numpy
    values = write_model(numpy, gguf, folder / "model.gguf")
    packed = folder / "packed"
    subprocess.run([program, "pack", folder / "model.gguf", "-o", packed, "--force"], check=True)
    found, types = read_store(numpy, gguf, packed / "model.efstore")
    compared = 0
    for name, tensor in found.items():
        if isinstance(name, tuple):
            part = ["gate", "up", "down"][name[1]]
            expected = values[f"blk.0.ffn_{part}_exps.weight"][name[0]]
        else:
            short = name.removesuffix(".weight").removeprefix("model.layers.0.")
            prefix = "blk.0." if name.startswith("model.layers") else ""
            expected = values[f"{prefix}{NAMES[short]}.weight"]
        if not numpy.array_equal(tensor, expected.reshape(-1)):
            sys.exit(f"{name}: largest difference "
                     f"{numpy.abs(tensor - expected.reshape(-1)).max()}")
        compared += tensor.size
    if len(found) != 12 + 3 * EXPERTS:
        sys.exit(f"expected {12 + 3 * EXPERTS} tensors, found {len(found)}")
    if types != {0, 3, 4, 6, 8, 9, 10, 11, 12}:  # every block is kept as it is
        sys.exit(f"the store has the types {types}")
    print(f"{compared} values of {len(found)} tensors are equal (gguf package)")


if __name__ == "__main__":
    main()

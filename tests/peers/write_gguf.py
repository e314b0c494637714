#!/usr/bin/env python3
"""A Qwen2-MoE folder of Hugging Face as a GGUF file, laid out as the published converters do.

    write_gguf.py MODEL FILE bf16|f16

Needs the packages `gguf` and `numpy`. Matrices get the type asked for, what is small stays float32.
"""
import json
import pathlib
import sys

import gguf
import numpy

NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
PROJECTIONS = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
SMALL = ("_norm.weight", ".bias", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")


def read_tensors(path):
    """Tensors of a safetensors file in BF16, as float32."""
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    header = 8 + int.from_bytes(data[:8].tobytes(), "little")
    tensors = {}
    for name, info in json.loads(data[8:header].tobytes()).items():
        if name == "__metadata__":
            continue
        if info["dtype"] != "BF16":
            sys.exit(f"{path}: tensor {name} is {info['dtype']}, expected BF16")
        begin, end = info["data_offsets"]
        bits = data[header + begin:header + end].view(numpy.uint16)
        raised = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
        tensors[name] = raised.reshape(info["shape"])
    return tensors


def renamed(tensors, layers, experts):
    """The tensors under GGUF's names; a layer's experts are one tensor."""
    out = {"token_embd.weight": tensors["model.embed_tokens.weight"],
           "output_norm.weight": tensors["model.norm.weight"],
           # The peer takes no tied embedding for this architecture.
           "output.weight": tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])}
    for layer in range(layers):
        of = f"model.layers.{layer}."
        to = f"blk.{layer}."
        for name, short in NAMES.items():
            for part in ("weight", "bias"):
                if f"{of}{name}.{part}" in tensors:
                    out[f"{to}{short}.{part}"] = tensors[f"{of}{name}.{part}"]
        out[f"{to}ffn_gate_inp_shexp.weight"] = out[f"{to}ffn_gate_inp_shexp.weight"].reshape(-1)
        for name, short in PROJECTIONS.items():
            out[f"{to}{short}_exps.weight"] = numpy.stack(
                [tensors[f"{of}mlp.experts.{expert}.{name}.weight"] for expert in range(experts)])
            out[f"{to}{short}_shexp.weight"] = tensors[f"{of}mlp.shared_expert.{name}.weight"]
    return out


def add_settings(writer, config):
    if config["model_type"] != "qwen2_moe" or config["norm_topk_prob"] or config["mlp_only_layers"]:
        sys.exit("expected a qwen2_moe whose layers all have experts, with weights as they are")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_tokenizer(writer, folder, config):
    with open(folder / "tokenizer.json", encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokens = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(tokenizer["model"]["merges"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main():
    folder, path, kind = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    wide = {"bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16}[kind]
    with open(folder / "config.json", encoding="utf-8") as file:
        config = json.load(file)
    writer = gguf.GGUFWriter(path, "qwen2moe")
    add_settings(writer, config)
    add_tokenizer(writer, folder, config)
    tensors = renamed(read_tensors(folder / "model.safetensors"), config["num_hidden_layers"],
                      config["num_experts"])
    for name, tensor in tensors.items():
        if name.endswith(SMALL):
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, wide), raw_dtype=wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()

#!/usr/bin/env python3
"""A tiny random GraniteMoe checkpoint, and what transformers computes for it.

usage: make_granite_moe.py FOLDER TOKENIZER_FOLDER PROMPTS_JSON

Needs torch, transformers, safetensors. FOLDER gets config.json, model.safetensors (bfloat16),
reference.json and reference.safetensors; the tokenizer is copied. Prompts are those of
PROMPTS_JSON, the reference.json of another checkpoint with the same tokenizer. Everything is
computed in float32, without a cache. Seeds are tried until no choice of a router or of the greedy
text hangs on rounding.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["GraniteMoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_multiplier": 0.125, "embedding_multiplier": 3.0, "eos_token_id": 296,
    "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 32, "logits_scaling": 1.5,
    "max_position_embeddings": 4096, "model_type": "granitemoe", "num_attention_heads": 4,
    "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "num_local_experts": 8, "output_router_logits": False, "pad_token_id": 296,
    "residual_multiplier": 0.6, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 304}
# Names as in published checkpoints, which transformers renames when it loads them.
PUBLISHED = {"block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
             "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
             "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight"}
GREEDY_TOKENS = 32
MARGIN_LOGIT, MARGIN_ROUTER = 0.005, 2e-4


def make_model(seed):
    config = transformers.GraniteMoeConfig(
        **{k: v for k, v in CONFIG.items() if not k.startswith("rope_") and k != "model_type"},
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG["rope_theta"]})
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.GraniteMoeForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.copy_(1 + 0.2 * torch.randn(tensor.shape, generator=generator))
            elif "embed" in name:
                tensor.copy_(1.2 * torch.randn(tensor.shape, generator=generator))
            else:
                tensor.copy_(3 / tensor.shape[-1] ** 0.5
                             * torch.randn(tensor.shape, generator=generator))
            tensor.copy_(tensor.to(torch.bfloat16).float())
    return model


@torch.no_grad()
def forward(model, ids):
    """Logits [n, vocab], router ids and weights [layers, n, k], residuals [layers + 1, hidden] of
    the last position, and the smallest distance of a chosen expert's score to the next one's."""
    scores, hooks = [], []
    for name, module in model.named_modules():
        if name.endswith("block_sparse_moe.router"):
            hooks.append(module.register_forward_hook(lambda _, __, out: scores.append(out[0])))
    out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    k = CONFIG["num_experts_per_tok"]
    logits = torch.stack([score.reshape(len(ids), -1) for score in scores])
    best = logits.topk(k + 1, dim=-1)
    weights = torch.softmax(best.values[..., :k], dim=-1)
    margin = (best.values[..., :k] - best.values[..., 1:]).min().item()
    hidden = torch.stack([state[0, -1] for state in out.hidden_states])
    return out.logits[0], best.indices[..., :k].int(), weights, hidden, margin


def reference(model, prompts):
    tensors, texts = {}, []
    margin_logit, margin_router = float("inf"), float("inf")
    for number, (text, ids) in enumerate(prompts):
        logits, routes, weights, hidden, margin = forward(model, ids)
        key = f"p{number}."
        tensors[key + "input_ids"] = torch.tensor(ids, dtype=torch.int32)
        last8 = len(ids) > 100
        tensors[key + ("logits_last8" if last8 else "logits")] = logits[-8:] if last8 else logits
        tensors[key + "router_ids"], tensors[key + "router_weights"] = routes, weights
        tensors[key + "hidden_last"] = hidden
        greedy = []
        margin_router = min(margin_router, margin)
        if margin_router <= MARGIN_ROUTER:
            break
        for _ in range(GREEDY_TOKENS):
            best = forward(model, ids + greedy)[0][-1].topk(2)
            margin_logit = min(margin_logit, (best.values[0] - best.values[1]).item())
            greedy.append(best.indices[0].item())
            if margin_logit <= MARGIN_LOGIT:
                return tensors, texts, margin_logit, margin_router
        texts.append({"text": text, "n_tokens": len(ids), "greedy_ids": greedy,
                      "max_abs_logit": logits.abs().max().item()})
    return tensors, texts, margin_logit, margin_router


def main():
    folder, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    prompts = [(prompt["text"], tokenizer(prompt["text"])["input_ids"])
               for prompt in json.loads(pathlib.Path(sys.argv[3]).read_text())["prompts"]]
    for seed in range(1, 200):
        model = make_model(seed)
        tensors, texts, margin_logit, margin_router = reference(model, prompts)
        if margin_logit > MARGIN_LOGIT and margin_router > MARGIN_ROUTER:
            break
    else:
        sys.exit("no seed with these margins")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    weights = {}
    for name, tensor in model.named_parameters():
        for ours, published in PUBLISHED.items():
            name = name.replace(ours, published)
        weights[name] = tensor.to(torch.bfloat16).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "reference.safetensors", {"format": "pt"})
    (folder / "reference.json").write_text(json.dumps({
        "model": "granite_moe", "seed": seed,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "computed_with": {"dtype": "float32", "weights": "bfloat16", "attn_implementation": "eager",
                          "experts_implementation": "eager", "device": "cpu", "use_cache": False},
        "min_logit_margin": margin_logit, "min_router_margin": margin_router, "prompts": texts},
        indent=1) + "\n")
    print(f"seed {seed}: margins {margin_logit:.3g} (logits), {margin_router:.3g} (router)")


if __name__ == "__main__":
    main()

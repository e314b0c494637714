// The forward pass of every family as plainly as it can be written, in double precision and without
// any code of model/arch: no cache, no batch, latent attention not absorbed, experts straight from
// the checkpoint's tensors. What a changed setting must do to the logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace expertflow::testing {

struct PlainTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using PlainTensors = std::map<std::string, PlainTensor>;

class NaiveDecoder {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  NaiveDecoder(nlohmann::json config, const PlainTensors& tensors)
      : config_(std::move(config)),
        tensors_(tensors),
        family_(config_["architectures"][0]),
        latent_(family_.starts_with("Deepseek")),
        granite_(family_ == "GraniteMoeForCausalLM") {
    ReadRope();
  }

  // Logits of every position.
  Rows Forward(const std::vector<int32_t>& ids) const {
    const auto hidden = Int("hidden_size");
    Rows x;
    for (const int32_t id : ids) {
      const auto& table = tensors_.at("model.embed_tokens.weight").values;
      x.emplace_back(table.begin() + id * hidden, table.begin() + (id + 1) * hidden);
      for (double& value : x.back()) value *= Get("embedding_multiplier", 1.0);
    }
    const double residual = Get("residual_multiplier", 1.0);
    for (int layer = 0; layer < Int("num_hidden_layers"); ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      Rows h;
      for (const Row& row : x) h.push_back(Norm(prefix + "input_layernorm", row, Eps()));
      h = latent_ ? LatentAttention(prefix + "self_attn.", h)
                  : GroupedAttention(prefix + "self_attn.", layer, h);
      for (size_t t = 0; t < x.size(); ++t) Add(residual, h[t], &x[t]);
      for (Row& row : x) {
        const Row normed = Norm(prefix + "post_attention_layernorm", row, Eps());
        Add(residual, IsMoe(layer) ? Experts(prefix, normed) : Mlp(prefix + "mlp.", normed), &row);
      }
    }
    Rows logits;
    for (const Row& row : x) {
      const bool tied = Get("tie_word_embeddings", false);
      logits.push_back(
          Linear(tied ? "model.embed_tokens" : "lm_head", Norm("model.norm", row, Eps())));
      for (double& logit : logits.back()) logit /= Get("logits_scaling", 1.0);
    }
    return logits;
  }

 private:
  int Int(const char* key) const { return config_.at(key).get<int>(); }
  template <typename T>
  T Get(const char* key, T otherwise) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? otherwise : found->get<T>();
  }
  double Eps() const { return config_.at("rms_norm_eps"); }
  bool Has(const std::string& tensor) const { return tensors_.contains(tensor); }
  bool IsMoe(int layer) const { return layer >= Get("first_k_dense_replace", 0); }

  static void Add(double factor, const Row& from, Row* to) {
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += factor * from[i];
  }
  static double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static Row Softmax(Row x) {
    const double largest = *std::max_element(x.begin(), x.end());
    for (double& value : x) value = std::exp(value - largest);
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    for (double& value : x) value /= sum;
    return x;
  }
  Row Linear(const std::string& name, const Row& x) const {
    const PlainTensor& w = tensors_.at(name + ".weight");
    Row y(static_cast<size_t>(w.shape[0]), 0.0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{w.values[r * x.size() + c]} * x[c];
    }
    if (!Has(name + ".bias")) return y;
    for (size_t r = 0; r < y.size(); ++r) y[r] += tensors_.at(name + ".bias").values[r];
    return y;
  }
  Row Norm(const std::string& name, Row x, double eps) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    const auto& weight = tensors_.at(name + ".weight").values;
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * weight[i];
    return x;
  }
  // Each part of the size of the weight alone.
  Row NormParts(const std::string& name, const Row& x) const {
    const size_t size = tensors_.at(name + ".weight").values.size();
    Row out;
    for (size_t at = 0; at < x.size(); at += size) {
      const Row part = Norm(name, Part(x, at, size), Eps());
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
  static Row Part(const Row& x, size_t begin, size_t count) {
    return {x.begin() + static_cast<ptrdiff_t>(begin),
            x.begin() + static_cast<ptrdiff_t>(begin + count)};
  }

  // --- rotary embedding ---

  void ReadRope() {
    nlohmann::json scaling = Get("rope_parameters", Get("rope_scaling", nlohmann::json::object()));
    const double theta = scaling.value("rope_theta", Get("rope_theta", 0.0));
    const double share =
        family_ != "Glm4MoeForCausalLM"
            ? 1.0
            : scaling.value("partial_rotary_factor", Get("partial_rotary_factor", 1.0));
    const std::string type =
        scaling.value("rope_type", scaling.value("type", std::string("default")));
    head_dim_ = latent_ ? Int("qk_rope_head_dim")
                        : Get("head_dim", Int("hidden_size") / Int("num_attention_heads"));
    rotary_dim_ = latent_ ? head_dim_ : static_cast<int>(head_dim_ * share);
    scale_ = 1 / std::sqrt(latent_ ? Int("qk_nope_head_dim") + Int("qk_rope_head_dim") : head_dim_);
    if (granite_) scale_ = Get("attention_multiplier", 1.0);
    const double factor = scaling.value("factor", 1.0);
    for (int i = 0; i < rotary_dim_ / 2; ++i) {
      frequencies_.push_back(std::pow(theta, -2.0 * i / rotary_dim_));
      if (type == "linear") frequencies_.back() /= factor;
    }
    if (type != "yarn") return;
    const double length = scaling.value("original_max_position_embeddings", 0.0);
    const auto pair_of = [&](double turns) {
      return rotary_dim_ * std::log(length / (turns * 2 * M_PI)) / (2 * std::log(theta));
    };
    double low = pair_of(scaling.value("beta_fast", 32.0));
    double high = pair_of(scaling.value("beta_slow", 1.0));
    if (scaling.value("truncate", true)) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rotary_dim_ - 1.0);
    for (int i = 0; i < rotary_dim_ / 2; ++i) {
      const double ramp = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
      frequencies_[i] *= ramp / factor + 1 - ramp;
    }
    const auto mscale = [factor](double share_of) { return 0.1 * share_of * std::log(factor) + 1; };
    const double all = scaling.value("mscale_all_dim", 0.0);
    amplitude_ = all > 0 ? mscale(scaling.value("mscale", 0.0)) / mscale(all) : mscale(1);
    amplitude_ = scaling.value("attention_factor", amplitude_);
    if (all > 0) scale_ *= mscale(all) * mscale(all);
  }

  // Rotates the elements [begin, begin + rotary) of each head.
  void Rotate(size_t position, size_t head_size, size_t begin, Row* x) const {
    const bool neighbours = latent_ && Get("rope_interleave", true);
    const size_t half = frequencies_.size();
    for (size_t head = begin; head < x->size(); head += head_size) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies_[i];
        double& a = (*x)[head + (neighbours ? 2 * i : i)];
        double& b = (*x)[head + (neighbours ? 2 * i + 1 : i + half)];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = (b * std::cos(angle) + a * std::sin(angle)) * amplitude_;
        a = rotated * amplitude_;
      }
    }
  }

  // --- attention ---

  // One head over the positions of a window; `sink` is null without one.
  Row Mix(const Row& q, const Rows& keys, const Rows& values, size_t t, int window,
          const float* sink) const {
    const size_t from = window > 0 && t + 1 > static_cast<size_t>(window) ? t + 1 - window : 0;
    Row scores;
    for (size_t s = from; s <= t; ++s) {
      scores.push_back(scale_ * std::inner_product(q.begin(), q.end(), keys[s].begin(), 0.0));
    }
    if (sink != nullptr) scores.push_back(*sink);
    scores = Softmax(scores);
    Row out(values[t].size(), 0.0);
    for (size_t s = from; s <= t; ++s) Add(scores[s - from], values[s], &out);
    return out;
  }

  int Window(int layer) const {
    if (family_ == "MixtralForCausalLM") return Get("sliding_window", 0);
    if (family_ != "GptOssForCausalLM") return 0;
    return config_["layer_types"][layer] == "sliding_attention" ? Int("sliding_window") : 0;
  }

  Rows GroupedAttention(const std::string& prefix, int layer, const Rows& x) const {
    const auto heads = static_cast<size_t>(Int("num_attention_heads"));
    const auto kv_heads = static_cast<size_t>(Int("num_key_value_heads"));
    const auto dim = static_cast<size_t>(head_dim_);
    const double clip = Get("clip_qkv", 0.0);
    Rows q, k, v, out;
    for (size_t t = 0; t < x.size(); ++t) {
      q.push_back(Linear(prefix + "q_proj", x[t]));
      k.push_back(Linear(prefix + "k_proj", x[t]));
      v.push_back(Linear(prefix + "v_proj", x[t]));
      if (Has(prefix + "q_norm.weight")) {
        q[t] = NormParts(prefix + "q_norm", q[t]);
        k[t] = NormParts(prefix + "k_norm", k[t]);
      }
      for (Row* row : {&q[t], &k[t], &v[t]}) {
        for (double& value : *row) value = clip > 0 ? std::clamp(value, -clip, clip) : value;
      }
      Rotate(t, dim, 0, &q[t]);
      Rotate(t, dim, 0, &k[t]);
    }
    const float* sinks =
        Has(prefix + "sinks") ? tensors_.at(prefix + "sinks").values.data() : nullptr;
    std::vector<Rows> keys(kv_heads), values(kv_heads);
    for (size_t h = 0; h < kv_heads; ++h) {
      for (size_t t = 0; t < x.size(); ++t) {
        keys[h].push_back(Part(k[t], h * dim, dim));
        values[h].push_back(Part(v[t], h * dim, dim));
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row mixed;
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv = h / (heads / kv_heads);
        const Row head = Mix(Part(q[t], h * dim, dim), keys[kv], values[kv], t, Window(layer),
                             sinks == nullptr ? nullptr : sinks + h);
        mixed.insert(mixed.end(), head.begin(), head.end());
      }
      out.push_back(Linear(prefix + "o_proj", mixed));
    }
    return out;
  }

  Rows LatentAttention(const std::string& prefix, const Rows& x) const {
    const auto heads = static_cast<size_t>(Int("num_attention_heads"));
    const auto nope = static_cast<size_t>(Int("qk_nope_head_dim"));
    const auto rope = static_cast<size_t>(Int("qk_rope_head_dim"));
    const auto value = static_cast<size_t>(Int("v_head_dim"));
    const auto rank = static_cast<size_t>(Int("kv_lora_rank"));
    constexpr double kEps = 1e-6;
    Rows q, out;
    std::vector<Rows> keys(heads), values(heads);
    for (size_t t = 0; t < x.size(); ++t) {
      q.push_back(Has(prefix + "q_proj.weight")
                      ? Linear(prefix + "q_proj", x[t])
                      : Linear(prefix + "q_b_proj", Norm(prefix + "q_a_layernorm",
                                                         Linear(prefix + "q_a_proj", x[t]), kEps)));
      Rotate(t, nope + rope, nope, &q[t]);
      const Row both = Linear(prefix + "kv_a_proj_with_mqa", x[t]);
      Row rotated = Part(both, rank, rope);
      Rotate(t, rope, 0, &rotated);
      const Row kv =
          Linear(prefix + "kv_b_proj", Norm(prefix + "kv_a_layernorm", Part(both, 0, rank), kEps));
      for (size_t h = 0; h < heads; ++h) {
        Row key = Part(kv, h * (nope + value), nope);
        key.insert(key.end(), rotated.begin(), rotated.end());
        keys[h].push_back(key);
        values[h].push_back(Part(kv, h * (nope + value) + nope, value));
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row mixed;
      for (size_t h = 0; h < heads; ++h) {
        const Row head =
            Mix(Part(q[t], h * (nope + rope), nope + rope), keys[h], values[h], t, 0, nullptr);
        mixed.insert(mixed.end(), head.begin(), head.end());
      }
      out.push_back(Linear(prefix + "o_proj", mixed));
    }
    return out;
  }

  // --- experts ---

  Row Mlp(const std::string& prefix, const Row& x, const char* gate = "gate_proj",
          const char* up = "up_proj", const char* down = "down_proj") const {
    Row a = Linear(prefix + gate, x);
    const Row b = Linear(prefix + up, x);
    for (size_t i = 0; i < a.size(); ++i) a[i] *= Sigmoid(a[i]) * b[i];
    return Linear(prefix + down, a);
  }

  Row FusedExpert(const std::string& prefix, size_t expert, const Row& x) const {
    const PlainTensor& gate_up = tensors_.at(prefix + "gate_up_proj");
    const PlainTensor& down = tensors_.at(prefix + "down_proj");
    const auto hidden = static_cast<size_t>(gate_up.shape[1]);
    const auto both = static_cast<size_t>(gate_up.shape[2]);
    const double limit = Get("swiglu_limit", 7.0);
    Row joined;
    for (size_t i = 0; i < both; i += 2) {
      const auto& bias = tensors_.at(prefix + "gate_up_proj_bias").values;
      double gate = bias[expert * both + i], up = bias[expert * both + i + 1];
      for (size_t h = 0; h < hidden; ++h) {
        const float* weights = gate_up.values.data() + (expert * hidden + h) * both + i;
        gate += weights[0] * x[h];
        up += weights[1] * x[h];
      }
      gate = std::min(gate, limit);
      up = std::clamp(up, -limit, limit);
      joined.push_back(gate * Sigmoid(1.702 * gate) * (up + 1));
    }
    const auto& bias = tensors_.at(prefix + "down_proj_bias").values;
    Row y(bias.begin() + static_cast<ptrdiff_t>(expert * hidden),
          bias.begin() + static_cast<ptrdiff_t>((expert + 1) * hidden));
    for (size_t i = 0; i < joined.size(); ++i) {
      for (size_t h = 0; h < hidden; ++h) {
        y[h] += down.values[(expert * joined.size() + i) * hidden + h] * joined[i];
      }
    }
    return y;
  }

  // input_linear has the rows of gate, then those of up.
  Row JoinedExpert(const std::string& prefix, size_t expert, const Row& x) const {
    const auto product = [&](const std::string& name, const Row& in) {
      const PlainTensor& all = tensors_.at(prefix + name + ".weight");
      const auto rows = static_cast<size_t>(all.shape[1]);
      Row y(rows, 0.0);
      for (size_t r = 0; r < rows; ++r) {
        const float* weights = all.values.data() + (expert * rows + r) * in.size();
        for (size_t c = 0; c < in.size(); ++c) y[r] += double{weights[c]} * in[c];
      }
      return y;
    };
    const Row both = product("input_linear", x);
    Row joined(both.size() / 2);
    for (size_t i = 0; i < joined.size(); ++i) {
      joined[i] = both[i] * Sigmoid(both[i]) * both[joined.size() + i];
    }
    return product("output_linear", joined);
  }

  // Chosen experts with their weights.
  std::vector<std::pair<size_t, double>> Route(const std::string& name, const Row& x) const {
    Row scores = Linear(name, x);
    const bool corrected = Has(name + ".e_score_correction_bias");
    const bool of_chosen = family_ == "GptOssForCausalLM" || granite_;
    if (corrected) {
      for (double& score : scores) score = Sigmoid(score);
    } else if (!of_chosen) {
      scores = Softmax(scores);
    }
    Row choice = scores;
    if (corrected) {
      const auto& bias = tensors_.at(name + ".e_score_correction_bias").values;
      for (size_t e = 0; e < choice.size(); ++e) choice[e] += bias[e];
    }
    if (corrected || Get("topk_method", std::string()) == "group_limited_greedy") {
      KeepGroups(corrected, &choice);
    }
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return choice[a] > choice[b]; });
    order.resize(static_cast<size_t>(Int("num_experts_per_tok")));
    Row weights;
    for (const size_t e : order) weights.push_back(scores[e]);
    if (of_chosen) weights = Softmax(weights);
    const bool normalise = family_ == "MixtralForCausalLM" || Get("norm_topk_prob", false);
    const double sum = normalise ? std::accumulate(weights.begin(), weights.end(), 0.0) : 1;
    std::vector<std::pair<size_t, double>> chosen;
    for (size_t i = 0; i < order.size(); ++i) {
      chosen.emplace_back(order[i], weights[i] / sum * Get("routed_scaling_factor", 1.0));
    }
    return chosen;
  }
  void KeepGroups(bool sum_of_two, Row* choice) const {
    const auto groups = static_cast<size_t>(Get("n_group", 1));
    const size_t size = choice->size() / groups;
    std::vector<std::pair<double, size_t>> order;
    for (size_t g = 0; g < groups; ++g) {
      Row members = Part(*choice, g * size, size);
      std::sort(members.rbegin(), members.rend());
      order.emplace_back(-(sum_of_two ? members[0] + members[1] : members[0]), g);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = static_cast<size_t>(Get("topk_group", 1)); i < groups; ++i) {
      for (size_t e = 0; e < size; ++e) (*choice)[order[i].second * size + e] = -1e9;
    }
  }

  Row Experts(const std::string& layer, const Row& x) const {
    const bool mixtral = family_ == "MixtralForCausalLM";
    const bool fused = family_ == "GptOssForCausalLM";
    const std::string mlp = layer + (mixtral || granite_ ? "block_sparse_moe." : "mlp.");
    const std::string router = granite_ ? "router.layer" : fused ? "router" : "gate";
    Row out(x.size(), 0.0);
    for (const auto& [expert, weight] : Route(mlp + router, x)) {
      const std::string name = mlp + "experts." + std::to_string(expert) + ".";
      Add(weight,
          fused      ? FusedExpert(mlp + "experts.", expert, x)
          : granite_ ? JoinedExpert(mlp, expert, x)
          : mixtral  ? Mlp(name, x, "w1", "w3", "w2")
                     : Mlp(name, x),
          &out);
    }
    if (Has(mlp + "shared_expert_gate.weight")) {
      Add(Sigmoid(Linear(mlp + "shared_expert_gate", x)[0]), Mlp(mlp + "shared_expert.", x), &out);
    }
    if (Has(mlp + "shared_experts.gate_proj.weight")) Add(1, Mlp(mlp + "shared_experts.", x), &out);
    return out;
  }

  const nlohmann::json config_;
  const PlainTensors& tensors_;
  const std::string family_;
  const bool latent_;
  const bool granite_;
  int head_dim_ = 0;
  int rotary_dim_ = 0;
  double scale_ = 0;
  double amplitude_ = 1;
  Row frequencies_;
};

}  // namespace expertflow::testing

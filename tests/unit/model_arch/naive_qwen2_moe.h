// Qwen2-MoE as plainly as it can be written, in double precision: no cache, no batch, no shared
// code with model/arch. What the forward pass is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace expertflow::testing {

struct FloatTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using FloatTensors = std::map<std::string, FloatTensor>;

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class NaiveQwen2Moe {
 public:
  NaiveQwen2Moe(nlohmann::json config, const FloatTensors& tensors)
      : config_(std::move(config)), tensors_(tensors) {}

  // Logits of every position.
  Rows Forward(const std::vector<int32_t>& ids) {
    Rows x;
    for (const int32_t id : ids) {
      Row row(Int("hidden_size"));
      const auto& table = tensors_.at("model.embed_tokens.weight").values;
      for (size_t c = 0; c < row.size(); ++c) row[c] = table[id * row.size() + c];
      x.push_back(row);
    }
    after_attention_.clear();
    for (int layer = 0; layer < Int("num_hidden_layers"); ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      Rows normed;
      for (const Row& row : x) normed.push_back(Norm(prefix + "input_layernorm.weight", row));
      const Rows attended = Attention(prefix + "self_attn.", normed);
      for (size_t t = 0; t < x.size(); ++t) Accumulate(1, attended[t], &x[t]);
      after_attention_.push_back(x);
      for (Row& row : x) {
        const Row h = Norm(prefix + "post_attention_layernorm.weight", row);
        Accumulate(1, IsMoe(layer) ? Experts(prefix + "mlp.", h) : Mlp(prefix + "mlp.", h), &row);
      }
    }
    const bool tied = config_.value("tie_word_embeddings", false);
    Rows logits;
    for (const Row& row : x) {
      logits.push_back(Apply(tied ? "model.embed_tokens.weight" : "lm_head.weight",
                             Norm("model.norm.weight", row)));
    }
    return logits;
  }

  // Router logits of layer `target` from the last Forward()'s residual stream at `source`.
  Row PreGate(int source, int target, size_t position) {
    const std::string prefix = "model.layers." + std::to_string(target) + ".";
    return Apply(prefix + "mlp.gate.weight", Norm(prefix + "post_attention_layernorm.weight",
                                                  after_attention_[source][position]));
  }

 private:
  int Int(const char* key) const { return config_.at(key).get<int>(); }
  bool IsMoe(int layer) const {
    for (const int dense : config_.value("mlp_only_layers", std::vector<int>())) {
      if (dense == layer) return false;
    }
    return (layer + 1) % config_.value("decoder_sparse_step", 1) == 0;
  }
  static void Accumulate(double factor, const Row& from, Row* to) {
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += factor * from[i];
  }
  // y = W x
  Row Apply(const std::string& name, const Row& x) const {
    const FloatTensor& w = tensors_.at(name);
    Row y(w.shape[0], 0.0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{w.values[r * x.size() + c]} * x[c];
    }
    return y;
  }
  Row Projection(const std::string& name, const Row& x) const {
    Row y = Apply(name + ".weight", x);
    if (config_.value("qkv_bias", true)) {
      const auto& bias = tensors_.at(name + ".bias").values;
      for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i];
    }
    return y;
  }
  Row Norm(const std::string& name, Row x) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / x.size() + config_.value("rms_norm_eps", 1e-6));
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * tensors_.at(name).values[i];
    return x;
  }
  static double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  Row Mlp(const std::string& prefix, const Row& x) const {
    Row gate = Apply(prefix + "gate_proj.weight", x);
    const Row up = Apply(prefix + "up_proj.weight", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= Sigmoid(gate[i]) * up[i];
    return Apply(prefix + "down_proj.weight", gate);
  }
  static Row Softmax(Row x) {
    const double largest = *std::max_element(x.begin(), x.end());
    for (double& value : x) value = std::exp(value - largest);
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    for (double& value : x) value /= sum;
    return x;
  }
  Row Experts(const std::string& prefix, const Row& x) const {
    const Row probability = Softmax(Apply(prefix + "gate.weight", x));
    std::vector<int> order(probability.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return probability[a] > probability[b]; });
    order.resize(Int("num_experts_per_tok"));
    double sum = 1;
    if (config_.value("norm_topk_prob", false)) {
      sum = 0;
      for (const int expert : order) sum += probability[expert];
    }
    Row out(x.size(), 0.0);
    for (const int expert : order) {
      const Row y = Mlp(prefix + "experts." + std::to_string(expert) + ".", x);
      Accumulate(probability[expert] / sum, y, &out);
    }
    const double gate = Sigmoid(Apply(prefix + "shared_expert_gate.weight", x)[0]);
    Accumulate(gate, Mlp(prefix + "shared_expert.", x), &out);
    return out;
  }
  // theta and the factor of linear scaling, wherever the config has them.
  std::pair<double, double> RopeSettings() const {
    double theta = 10000;
    if (config_["rope_theta"].is_number()) theta = config_["rope_theta"];
    double factor = 1;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!config_.contains(key)) continue;
      theta = config_[key].value("rope_theta", theta);
      factor = config_[key].value("factor", factor);
    }
    return {theta, factor};
  }
  void Rotate(size_t position, int dim, Row* x) const {
    const auto [theta, factor] = RopeSettings();
    for (size_t head = 0; head < x->size(); head += dim) {
      for (int i = 0; i < dim / 2; ++i) {
        const double angle = position / factor * std::pow(theta, -2.0 * i / dim);
        double& a = (*x)[head + i];
        double& b = (*x)[head + i + dim / 2];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = rotated;
      }
    }
  }
  Rows Attention(const std::string& prefix, const Rows& x) const {
    const int heads = Int("num_attention_heads");
    const int dim = config_.value("head_dim", Int("hidden_size") / heads);
    const int shared = heads / config_.value("num_key_value_heads", heads);
    Rows q, k, v, out;
    for (size_t t = 0; t < x.size(); ++t) {
      q.push_back(Projection(prefix + "q_proj", x[t]));
      k.push_back(Projection(prefix + "k_proj", x[t]));
      v.push_back(Projection(prefix + "v_proj", x[t]));
      Rotate(t, dim, &q[t]);
      Rotate(t, dim, &k[t]);
      Row mixed(q[t].size(), 0.0);
      for (int head = 0; head < heads; ++head) {
        const int from = head / shared * dim;
        Row scores(t + 1, 0.0);
        for (size_t s = 0; s <= t; ++s) {
          for (int i = 0; i < dim; ++i) scores[s] += q[t][head * dim + i] * k[s][from + i];
          scores[s] /= std::sqrt(dim);
        }
        scores = Softmax(scores);
        for (size_t s = 0; s <= t; ++s) {
          for (int i = 0; i < dim; ++i) mixed[head * dim + i] += scores[s] * v[s][from + i];
        }
      }
      out.push_back(Apply(prefix + "o_proj.weight", mixed));
    }
    return out;
  }

  const nlohmann::json config_;
  const FloatTensors& tensors_;
  std::vector<Rows> after_attention_;  // [layers][positions]
};

}  // namespace expertflow::testing

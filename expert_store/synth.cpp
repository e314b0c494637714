#include "expert_store/synth.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "common/mapped_file.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/safetensors_writer.h"

namespace expertflow {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

// SplitMix64 (Steele, Lea, Flood 2014): one multiply-xor chain per 64 random bits.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Values are uniform in [center - width, center + width], in steps of width / 2^15.
struct Distribution {
  float center = 0;
  float width = 0;
};

Distribution DistributionOf(const TensorSpec& spec) {
  if (spec.name.ends_with("bias")) return {0.0f, 0.02f};
  if (spec.shape.size() < 2) return {1.0f, 0.1f};  // a norm's scale
  if (spec.name.find("embed_tokens") != std::string::npos) return {0.0f, 1.0f};
  // A matrix of variance 1 / inputs keeps the size of what passes through it.
  const auto inputs = static_cast<float>(std::max<int64_t>(spec.shape.back(), 1));
  return {0.0f, std::sqrt(3.0f / inputs)};
}

uint16_t ToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Of |value| < 2: multiplying by 2^-112 moves the exponent to half's, subnormals included.
uint16_t ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(bits & 0x7fffffff) *
                                              std::bit_cast<float>(uint32_t{15} << 23));
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | ((scaled + 0x1000) >> 13));
}

template <typename Element, typename Convert>
void Generate(const Distribution& distribution, Random* random, std::vector<uint8_t>* piece,
              const Convert& convert) {
  constexpr size_t kPerDraw = 4;
  const float step = distribution.width / 32768.0f;
  for (size_t at = 0; at < piece->size(); at += kPerDraw * sizeof(Element)) {
    const uint64_t draw = random->Next();
    Element elements[kPerDraw];
    for (size_t i = 0; i < kPerDraw; ++i) {
      const auto whole = static_cast<int16_t>(draw >> (16 * i));
      elements[i] = convert(distribution.center + step * static_cast<float>(whole));
    }
    std::memcpy(piece->data() + at, elements, std::min(sizeof(elements), piece->size() - at));
  }
}

void GeneratePiece(DType dtype, const Distribution& distribution, Random* random,
                   std::vector<uint8_t>* piece) {
  switch (dtype) {
    case DType::kF32:
      return Generate<float>(distribution, random, piece, [](float value) { return value; });
    case DType::kF16: return Generate<uint16_t>(distribution, random, piece, ToF16);
    case DType::kBF16: return Generate<uint16_t>(distribution, random, piece, ToBF16);
    default: return;  // no type of a checkpoint
  }
}

struct Shard {
  std::vector<const TensorSpec*> tensors;
  uint64_t bytes = 0;
};

class Synthesizer {
 public:
  Synthesizer(const SyntheticOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  // Slices of one tensor add it once.
  Status AddTensor(const TensorSpec& planned) {
    if (planned.slice && !sliced_.insert(planned.source()).second) return OkStatus();
    const TensorSpec& spec =
        planned.slice ? wholes_.emplace_back(TensorSpec{planned.source(), planned.source_shape()})
                      : planned;
    const auto bytes = TensorBytes(spec.shape, DTypeBytes(options_.dtype));
    if (!bytes.ok()) return bytes.status().WithContext(spec.name);
    const uint64_t used = shards_.empty() ? 0 : shards_.back().bytes;
    const bool full =
        used > 0 && (used >= options_.shard_bytes || *bytes > options_.shard_bytes - used);
    if (shards_.empty() || full) shards_.emplace_back();
    shards_.back().tensors.push_back(&spec);
    shards_.back().bytes += *bytes;
    total_bytes_ += *bytes;
    return OkStatus();
  }

  Status Write() {
    for (size_t i = 0; i < shards_.size(); ++i) RETURN_IF_ERROR(WriteShard(i));
    return shards_.size() > 1 ? WriteIndex() : OkStatus();
  }

 private:
  std::string ShardName(size_t i) const {
    if (shards_.size() == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
  std::string PathOf(const std::string& name) const {
    return (std::filesystem::path(folder_) / name).string();
  }

  Status WriteShard(size_t i) {
    std::vector<TensorDeclaration> declared;
    for (const TensorSpec* spec : shards_[i].tensors) {
      declared.push_back({spec->name, FromDType(options_.dtype), spec->shape});
    }
    ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(PathOf(ShardName(i)), declared));
    for (const TensorSpec* spec : shards_[i].tensors) RETURN_IF_ERROR(WriteTensor(*spec, &writer));
    return writer.Finish();
  }

  // The seed depends on the name, so that a tensor is the same however many layers there are.
  Status WriteTensor(const TensorSpec& spec, SafetensorsWriter* writer) {
    Random random(XXH3_64bits_withSeed(spec.name.data(), spec.name.size(), options_.seed));
    const Distribution distribution = DistributionOf(spec);
    ASSIGN_OR_RETURN(uint64_t left, TensorBytes(spec.shape, DTypeBytes(options_.dtype)));
    while (left > 0) {
      piece_.resize(std::min<uint64_t>(left, kPieceBytes));
      GeneratePiece(options_.dtype, distribution, &random, &piece_);
      RETURN_IF_ERROR(writer->Append(piece_));
      left -= piece_.size();
      done_bytes_ += piece_.size();
      if (options_.progress) options_.progress(done_bytes_, total_bytes_);
    }
    return OkStatus();
  }

  Status WriteIndex() const {
    auto map = nlohmann::json::object();
    for (size_t i = 0; i < shards_.size(); ++i) {
      for (const TensorSpec* spec : shards_[i].tensors) map[spec->name] = ShardName(i);
    }
    const nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}},
                                  {"weight_map", std::move(map)}};
    return WriteFileAtomically(PathOf("model.safetensors.index.json"),
                               index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  const SyntheticOptions& options_;
  std::string folder_;
  std::set<std::string> sliced_;
  std::deque<TensorSpec> wholes_;  // the tensors that slices are of
  std::vector<Shard> shards_;
  std::vector<uint8_t> piece_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace

Status WriteSyntheticCheckpoint(const WeightPlan& plan, const std::string& config_json,
                                const std::string& folder, const SyntheticOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FromErrno(error.value(), "cannot create folder " + folder);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (std::filesystem::exists(std::filesystem::path(folder) / name, error)) {
      return FailedPrecondition(
          fmt::format("{}: there is a checkpoint already ({}); name another folder", folder, name));
    }
  }
  Synthesizer synthesizer(options, folder);
  for (const TensorSpec& spec : plan.dense) RETURN_IF_ERROR(synthesizer.AddTensor(spec));
  for (const ExpertSpec& expert : plan.experts) {
    for (const TensorSpec* part : expert.parts()) RETURN_IF_ERROR(synthesizer.AddTensor(*part));
  }
  RETURN_IF_ERROR(synthesizer.Write());
  return WriteFileAtomically((std::filesystem::path(folder) / "config.json").string(), config_json);
}

}  // namespace expertflow

// Any bytes as a predictor's file. The hash would keep the fuzzer from everything behind it, so
// each input is read twice: as it is, and with the hash set right. What is accepted must predict.
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "predictor/core/hybrid_predictor.h"
#include "predictor/hybrid_file.h"

namespace {

constexpr size_t kHeaderBytes = 88;
constexpr size_t kHashAt = 80;

void Read(std::string_view bytes) {
  auto file = expertflow::DecodeHybrid(bytes, "input");
  if (!file.ok()) return;
  const auto model = std::make_shared<const expertflow::HybridModel>(std::move(file->model));
  expertflow::HybridPredictor predictor(model);
  const std::vector<float> residual(static_cast<size_t>(model->hidden), 0.5f);
  const std::vector<uint16_t> chosen = {0, 1};
  for (int32_t token = 0; token < 2; ++token) {
    predictor.BeginToken(token);
    for (int32_t layer = 0; layer < model->layers(); ++layer) {
      predictor.ObserveRouter(layer, residual, chosen, {});
      const int32_t count = predictor.Evaluate(expertflow::PredictionArm::kForestProbe, 8);
      for (int32_t d = 1; d <= count; ++d) {
        for (const float p : predictor.Probabilities(d)) {
          if (!(p >= 0 && p <= 1)) std::abort();
        }
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Read(bytes);
  if (size < kHeaderBytes) return 0;
  const uint64_t hash = XXH3_64bits(bytes.data() + kHeaderBytes, size - kHeaderBytes);
  std::memcpy(bytes.data() + kHashAt, &hash, sizeof(hash));
  Read(bytes);
  return 0;
}

#include "predictor/next_use_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/mapped_file.h"
#include "predictor/packed_vectors.h"

namespace expertflow {
namespace {

constexpr uint64_t kForecasterMagic = 0x314553555458454e;  // "NEXTUSE1"
constexpr uint32_t kForecasterVersion = 1;
constexpr size_t kForecasterBytesMax = size_t{1} << 30;
constexpr uint32_t kForecasterSequencesMax = 1u << 20;

struct ForecasterHeader {
  uint64_t magic = kForecasterMagic;
  uint32_t version = kForecasterVersion;
  uint32_t layers = 0;
  std::array<uint8_t, 16> identity = {};
  int32_t rank = 0;
  int32_t gain_rank = 0;
  uint32_t sequences = 0;
  // What the numbers mean; another set of half-lives or horizons is another version.
  uint8_t features = kForecastFeatures;
  uint8_t own_rates = kForecastOwnRates;
  uint8_t horizons = kForecastHorizons;
  uint8_t zero = 0;
  uint64_t rows = 0;
  uint64_t hash = 0;  // XXH3-64 of what follows
};
static_assert(sizeof(ForecasterHeader) == 64);

}  // namespace

std::string EncodeNextUse(const NextUseFile& file) {
  std::string body;
  AppendVector(file.model.experts, &body);
  AppendVector(file.trained_on, &body);
  AppendVector(file.model.bias, &body);
  AppendVector(file.model.state_in, &body);
  AppendVector(file.model.state_out, &body);
  AppendVector(file.model.own, &body);
  AppendVector(file.model.gain_in, &body);
  AppendVector(file.model.gain_out, &body);
  ForecasterHeader header;
  header.layers = static_cast<uint32_t>(file.model.experts.size());
  header.identity = file.identity;
  header.rank = file.model.rank;
  header.gain_rank = file.model.gain_rank;
  header.sequences = static_cast<uint32_t>(file.trained_on.size());
  header.rows = file.trained_rows;
  header.hash = XXH3_64bits(body.data(), body.size());
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  return out + body;
}

Result<NextUseFile> DecodeNextUse(std::string_view bytes, const std::string& name) {
  ForecasterHeader header;
  if (bytes.size() < sizeof(header)) return InvalidArgument(name + ": too short for a forecaster");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(sizeof(header));
  if (header.magic != kForecasterMagic) return InvalidArgument(name + ": not a forecaster (.efn)");
  if (header.version != kForecasterVersion || header.features != kForecastFeatures ||
      header.own_rates != kForecastOwnRates || header.horizons != kForecastHorizons) {
    return InvalidArgument(fmt::format("{}: version {}; this program reads version {}. Train anew",
                                       name, header.version, kForecasterVersion));
  }
  if (header.hash != XXH3_64bits(bytes.data(), bytes.size())) {
    return InvalidArgument(name + ": damaged");
  }
  NextUseFile file;
  file.identity = header.identity;
  file.trained_rows = header.rows;
  NextUseModel& model = file.model;
  model.rank = header.rank;
  model.gain_rank = header.gain_rank;
  const auto wrong = [&] { return InvalidArgument(name + ": impossible sizes"); };
  if (header.layers > 1024 || header.sequences > kForecasterSequencesMax || header.rank < 1 ||
      header.gain_rank < 1 || !TakeVector(&bytes, header.layers, &model.experts) ||
      !TakeVector(&bytes, header.sequences, &file.trained_on)) {
    return wrong();
  }
  uint64_t n = 0;
  for (const int32_t count : model.experts) {
    if (count < 1 || count > 65536) return wrong();
    n += static_cast<uint64_t>(count);
  }
  const auto rank = static_cast<uint64_t>(header.rank);
  const auto gain_rank = static_cast<uint64_t>(header.gain_rank);
  const uint64_t targets = n * (1 + kForecastHorizons);
  if (n > 65536 || rank > 4096 || gain_rank > 4096 || !TakeVector(&bytes, targets, &model.bias) ||
      !TakeVector(&bytes, kForecastFeatures * n * rank, &model.state_in) ||
      !TakeVector(&bytes, rank * targets, &model.state_out) ||
      !TakeVector(&bytes, (kForecastOwnRates + 1) * targets, &model.own) ||
      !TakeVector(&bytes, n * gain_rank, &model.gain_in) ||
      !TakeVector(&bytes, header.layers * gain_rank * targets, &model.gain_out) || !bytes.empty()) {
    return wrong();
  }
  RETURN_IF_ERROR(CheckNextUseModel(model).WithContext(name));
  return file;
}

Result<NextUseFile> ReadNextUse(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(path, kForecasterBytesMax));
  return DecodeNextUse(bytes, path);
}

}  // namespace expertflow

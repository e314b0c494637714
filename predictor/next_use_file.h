// The file of a fitted next-use forecaster (docs/file-formats.md): it holds the identity of the
// model that it was fitted to, and is refused for any other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"

namespace expertflow {

struct NextUseFile {
  NextUseModel model;
  std::array<uint8_t, 16> identity = {};  // of the language model
  std::vector<uint64_t> trained_on;       // hashes of the sequences, ascending
  uint64_t trained_rows = 0;
};

std::string EncodeNextUse(const NextUseFile& file);
// Checks everything; `name` is for messages.
Result<NextUseFile> DecodeNextUse(std::string_view bytes, const std::string& name);
Result<NextUseFile> ReadNextUse(const std::string& path);

}  // namespace expertflow

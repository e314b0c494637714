// Groups of rows of weights in bytes, whose multiples are added to a line of numbers: small enough
// to stay in a core's cache, where floats would be fetched from memory. Factors are rounded to
// 16-bit steps as in byte_matrix.h, so sums are whole numbers and equal on every machine. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace expertflow {

struct ByteRowsShape {
  size_t groups = 0;
  size_t rows = 0;   // of a group
  size_t parts = 0;  // of a row, each with a scale of its own
  size_t width = 0;  // of a part
};

class ByteRows {
 public:
  ByteRows() = default;
  // The nearest bytes. rows[groups, rows, parts, width]. REQUIRES: finite
  ByteRows(std::span<const float> rows, const ByteRowsShape& shape);

  // to[c] += sum over r of factors[r] * row[group, r, part, c], for `begin` <= c < width.
  // factors[rows]; to[width]. Adds nothing when a factor is no finite number.
  void AddTo(size_t group, size_t part, size_t begin, std::span<const float> factors,
             float* to) const;

 private:
  size_t tiles() const;

  ByteRowsShape shape_;
  size_t pairs_ = 0;  // of rows; the last one may be filled up with zeros
  // [groups, parts, tiles, pairs, columns of a tile, 2]: two rows of a column lie together, which
  // one instruction multiplies and adds.
  std::vector<int8_t> values_;
  std::vector<float> scales_;  // [groups, parts, rows]
};

}  // namespace expertflow

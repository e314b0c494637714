#include "model/tokenizer/nfc.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "model/tokenizer/utf8.h"

namespace expertflow {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

utf8proc_propval_t CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

Status NormalizationFailed(utf8proc_ssize_t error) {
  return Internal(fmt::format("Unicode normalization failed: {}", utf8proc_errmsg(error)));
}

Status AppendDecomposed(std::string_view text, std::vector<utf8proc_int32_t>* out) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    text.remove_prefix(step.bytes);
    // No canonical decomposition of one code point is longer than four.
    utf8proc_int32_t parts[8];
    int last_boundclass = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(step.code_point), parts, 8, kOptions, &last_boundclass);
    if (count < 0 || count > 8) return NormalizationFailed(count);
    out->insert(out->end(), parts, parts + count);
  }
  return OkStatus();
}

// The canonical ordering algorithm (Unicode standard, section 3.11).
void OrderMarks(std::vector<utf8proc_int32_t>* code_points) {
  const auto is_starter = [](utf8proc_int32_t c) { return CombiningClass(c) == 0; };
  auto begin = code_points->begin();
  while (begin != code_points->end()) {
    begin = std::find_if_not(begin, code_points->end(), is_starter);
    const auto end = std::find_if(begin, code_points->end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

}  // namespace

Result<std::string> NormalizeNfc(std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  RETURN_IF_ERROR(AppendDecomposed(text, &code_points));
  OrderMarks(&code_points);
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kOptions);
  if (count < 0) return NormalizationFailed(count);

  std::string composed;
  composed.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8proc_uint8_t encoded[4];
    const utf8proc_ssize_t bytes = utf8proc_encode_char(code_points[i], encoded);
    composed.append(reinterpret_cast<const char*>(encoded), static_cast<size_t>(bytes));
  }
  return composed;
}

}  // namespace expertflow

#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/mapped_file.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/tokenizer_json.h"
#include "model/tokenizer/utf8.h"

namespace expertflow {

// Text goes through the members in this order, as in the reference: added tokens that are looked
// for in the text as it is, normalization, those looked for in normalized text, pieces, BPE.
struct Tokenizer::Parts {
  struct Working {
    std::vector<AddedTokenMatcher::Segment> segments;
    PreTokenizer::Pieces pieces;
    BpeScratch bpe;
  };

  // `at_start`: nothing comes before the segment.
  Status EncodeSegment(std::string_view text, bool at_start, Working* working,
                       std::vector<int32_t>* ids) const;
  Status EncodePlain(std::string_view text, bool at_start, Working* working,
                     std::vector<int32_t>* ids) const;

  std::string name;
  AddedTokenMatcher verbatim_tokens;
  Normalizer normalizer;
  AddedTokenMatcher normalized_tokens;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::vector<int32_t> special_ids;  // sorted
  int32_t leading_spaces_dropped;
  std::vector<int32_t> prompt_prefix;
  std::vector<int32_t> prompt_suffix;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                    std::string name_for_errors,
                                                    const PromptTokens& prompt) {
  ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTokenizerJson(json, name_for_errors));
  const std::pair<const std::optional<std::string>&, std::vector<int32_t>&> sides[] = {
      {prompt.before, definition.prompt_prefix}, {prompt.after, definition.prompt_suffix}};
  for (const auto& [content, ids] : sides) {
    if (!content) continue;
    ids.clear();
    if (content->empty()) continue;
    const std::optional<int32_t> id = definition.bpe.vocabulary().Find(*content);
    if (!id) {
      return InvalidArgument(fmt::format("{}: '{}', which every prompt should have, is no token",
                                         name_for_errors, *content));
    }
    ids.push_back(*id);
  }
  std::vector<AddedToken> verbatim;
  std::vector<AddedToken> normalized;
  std::vector<int32_t> special_ids;
  for (AddedToken& token : definition.added_tokens) {
    if (token.special) special_ids.push_back(token.id);
    if (!token.normalized) {
      verbatim.push_back(std::move(token));
      continue;
    }
    std::string owned;
    ASSIGN_OR_RETURN(const std::string_view content,
                     definition.normalizer.Apply(token.content, &owned));
    token.content = std::string(content);
    normalized.push_back(std::move(token));
  }
  std::sort(special_ids.begin(), special_ids.end());

  auto parts = std::make_unique<Parts>(Parts{std::move(name_for_errors),
                                             {},
                                             std::move(definition.normalizer),
                                             {},
                                             std::move(definition.pre_tokenizer),
                                             std::move(definition.bpe),
                                             std::move(special_ids),
                                             definition.leading_spaces_dropped,
                                             std::move(definition.prompt_prefix),
                                             std::move(definition.prompt_suffix)});
  parts->verbatim_tokens.Build(std::move(verbatim));
  parts->normalized_tokens.Build(std::move(normalized));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  if (text.size() > kTextBytesMax) {
    return InvalidArgument(
        fmt::format("a text of {} bytes is too long to encode, at most {} are "
                    "allowed",
                    text.size(), kTextBytesMax));
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    AppendLossyUtf8(text, &repaired);
    text = repaired;
  }
  std::vector<int32_t> ids;
  std::vector<AddedTokenMatcher::Segment> segments;
  parts_->verbatim_tokens.Split(text, &segments);
  Parts::Working working;
  // Shorter texts repeat too few words to be worth it.
  constexpr size_t kCacheTextBytesMin = 16 << 10;
  if (text.size() >= kCacheTextBytesMin) working.bpe.cache.resize(BpeScratch::kCachedWords);
  for (const auto& segment : segments) {
    if (segment.id != AddedTokenMatcher::Segment::kText) {
      ids.push_back(segment.id);
      continue;
    }
    const bool at_start = segment.text.data() == text.data();
    const Status encoded = parts_->EncodeSegment(segment.text, at_start, &working, &ids);
    if (!encoded.ok()) return encoded.WithContext(parts_->name);
  }
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::EncodePrompt(std::string_view text) const {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, Encode(text));
  ids.insert(ids.begin(), parts_->prompt_prefix.begin(), parts_->prompt_prefix.end());
  ids.insert(ids.end(), parts_->prompt_suffix.begin(), parts_->prompt_suffix.end());
  return ids;
}

Status Tokenizer::Parts::EncodeSegment(std::string_view text, bool at_start, Working* working,
                                       std::vector<int32_t>* ids) const {
  std::string normalized;
  ASSIGN_OR_RETURN(text, normalizer.Apply(text, &normalized));
  working->segments.clear();
  normalized_tokens.Split(text, &working->segments);
  for (const auto& segment : working->segments) {
    if (segment.id != AddedTokenMatcher::Segment::kText) {
      ids->push_back(segment.id);
      continue;
    }
    const bool first = at_start && segment.text.data() == text.data();
    RETURN_IF_ERROR(EncodePlain(segment.text, first, working, ids));
  }
  return OkStatus();
}

Status Tokenizer::Parts::EncodePlain(std::string_view text, bool at_start, Working* working,
                                     std::vector<int32_t>* ids) const {
  RETURN_IF_ERROR(pre_tokenizer.Split(text, at_start, &working->pieces));
  for (const std::string_view piece : working->pieces.views) {
    RETURN_IF_ERROR(bpe.Encode(piece, &working->bpe, ids));
  }
  return OkStatus();
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !IsSpecial(id)) bytes.append(TokenBytes(id));
  }
  size_t spaces = 0;
  while (spaces < static_cast<size_t>(leading_spaces_dropped()) && spaces < bytes.size() &&
         bytes[spaces] == ' ') {
    ++spaces;
  }
  bytes.erase(0, spaces);
  if (IsValidUtf8(bytes)) return bytes;
  std::string text;
  AppendLossyUtf8(bytes, &text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return parts_->bpe.vocabulary().Bytes(id);
}

int32_t Tokenizer::leading_spaces_dropped() const {
  return parts_->leading_spaces_dropped;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return std::binary_search(parts_->special_ids.begin(), parts_->special_ids.end(), id);
}

int32_t Tokenizer::vocab_size() const {
  return parts_->bpe.vocabulary().size();
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view content) const {
  return parts_->bpe.vocabulary().Find(content);
}

}  // namespace expertflow

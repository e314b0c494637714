#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/mapped_file.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/nfc.h"
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

  Status EncodeSegment(std::string_view text, Working* working, std::vector<int32_t>* ids) const;
  Status EncodePlain(std::string_view text, Working* working, std::vector<int32_t>* ids) const;

  std::string name;
  AddedTokenMatcher verbatim_tokens;
  bool normalize_nfc;
  AddedTokenMatcher normalized_tokens;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::vector<int32_t> special_ids;  // sorted
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                    std::string name_for_errors) {
  ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTokenizerJson(json, name_for_errors));
  std::vector<AddedToken> verbatim;
  std::vector<AddedToken> normalized;
  std::vector<int32_t> special_ids;
  for (AddedToken& token : definition.added_tokens) {
    if (token.special) special_ids.push_back(token.id);
    if (!token.normalized) {
      verbatim.push_back(std::move(token));
      continue;
    }
    if (definition.normalize_nfc) {
      ASSIGN_OR_RETURN(token.content, NormalizeNfc(token.content));
    }
    normalized.push_back(std::move(token));
  }
  std::sort(special_ids.begin(), special_ids.end());

  auto parts = std::make_unique<Parts>(Parts{std::move(name_for_errors),
                                             {},
                                             definition.normalize_nfc,
                                             {},
                                             std::move(definition.pre_tokenizer),
                                             std::move(definition.bpe),
                                             std::move(special_ids)});
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
  for (const auto& segment : segments) {
    if (segment.id != AddedTokenMatcher::Segment::kText) {
      ids.push_back(segment.id);
      continue;
    }
    const Status encoded = parts_->EncodeSegment(segment.text, &working, &ids);
    if (!encoded.ok()) return encoded.WithContext(parts_->name);
  }
  return ids;
}

Status Tokenizer::Parts::EncodeSegment(std::string_view text, Working* working,
                                       std::vector<int32_t>* ids) const {
  std::string nfc;
  if (normalize_nfc && !IsAscii(text)) {
    ASSIGN_OR_RETURN(nfc, NormalizeNfc(text));
    text = nfc;
  }
  working->segments.clear();
  normalized_tokens.Split(text, &working->segments);
  for (const auto& segment : working->segments) {
    if (segment.id != AddedTokenMatcher::Segment::kText) {
      ids->push_back(segment.id);
      continue;
    }
    RETURN_IF_ERROR(EncodePlain(segment.text, working, ids));
  }
  return OkStatus();
}

Status Tokenizer::Parts::EncodePlain(std::string_view text, Working* working,
                                     std::vector<int32_t>* ids) const {
  RETURN_IF_ERROR(pre_tokenizer.Split(text, &working->pieces));
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
  if (IsValidUtf8(bytes)) return bytes;
  std::string text;
  AppendLossyUtf8(bytes, &text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return parts_->bpe.vocabulary().Bytes(id);
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

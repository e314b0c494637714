#include "model/tokenizer/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

namespace expertflow {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

constexpr size_t kJsonBytesMax = size_t{256} << 20;
constexpr size_t kJsonDepthMax = 32;
constexpr size_t kMergesMax = size_t{1} << 24;
constexpr size_t kLookUpsAtOnce = 32;

// The GPT-2 pre-tokenizer, which "use_regex" of ByteLevel stands for.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string_view TypeName(const element& value) {
  switch (value.type()) {
    case element_type::ARRAY: return "an array";
    case element_type::OBJECT: return "an object";
    case element_type::STRING: return "a string";
    case element_type::BOOL: return "a boolean";
    case element_type::NULL_VALUE: return "null";
    default: return "a number";
  }
}

template <typename T>
constexpr std::string_view WantedName() {
  if constexpr (std::is_same_v<T, array>) return "an array";
  if constexpr (std::is_same_v<T, object>) return "an object";
  if constexpr (std::is_same_v<T, std::string_view>) return "a string";
  if constexpr (std::is_same_v<T, bool>) return "a boolean";
  return "an integer";
}

// `where` is the path of `value` for the message, as in "model.vocab".
template <typename T>
Result<T> Get(const element& value, std::string_view where) {
  T result;
  if (value.get(result) == simdjson::SUCCESS) return result;
  return InvalidArgument(
      fmt::format("{} must be {}, found {}", where, WantedName<T>(), TypeName(value)));
}

// The member `key`, or nothing when it is absent or null.
std::optional<element> Find(const object& parent, std::string_view key) {
  element value;
  if (parent.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

template <typename T>
Result<T> GetMember(const object& parent, std::string_view where, std::string_view key) {
  const auto value = Find(parent, key);
  if (!value) return InvalidArgument(fmt::format("{}.{} is missing", where, key));
  return Get<T>(*value, fmt::format("{}.{}", where, key));
}

template <typename T>
Result<T> GetMemberOr(const object& parent, std::string_view where, std::string_view key,
                      T fallback) {
  const auto value = Find(parent, key);
  if (!value) return fallback;
  return Get<T>(*value, fmt::format("{}.{}", where, key));
}

Status Unsupported(std::string_view where, std::string_view what, std::string_view supported) {
  return InvalidArgument(fmt::format("{} {} is not supported, only {}", where, what, supported));
}

// A component of the file, {"type": ..., ...}.
struct Component {
  object members;
  std::string_view type;
  std::string where;
};

Result<Component> GetComponent(const element& value, std::string where) {
  ASSIGN_OR_RETURN(const object members, Get<object>(value, where));
  ASSIGN_OR_RETURN(const std::string_view type,
                   GetMember<std::string_view>(members, where, "type"));
  return Component{members, type, std::move(where)};
}

// The components of `value`, those of (nested) Sequences one by one. `list_key` is what the
// Sequence calls its list.
Status Flatten(const element& value, const std::string& where, std::string_view list_key,
               std::vector<Component>* components) {
  ASSIGN_OR_RETURN(Component component, GetComponent(value, where));
  if (component.type != "Sequence") {
    components->push_back(std::move(component));
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const array list, GetMember<array>(component.members, where, list_key));
  size_t i = 0;
  for (const element& part : list) {
    RETURN_IF_ERROR(
        Flatten(part, fmt::format("{}.{}[{}]", where, list_key, i++), list_key, components));
  }
  return OkStatus();
}

Result<std::vector<Component>> GetComponents(const object& root, const std::string& key,
                                             std::string_view list_key) {
  std::vector<Component> components;
  if (const auto value = Find(root, key)) {
    RETURN_IF_ERROR(Flatten(*value, key, list_key, &components));
  }
  return components;
}

Result<Regex> ReadPattern(const Component& split) {
  ASSIGN_OR_RETURN(const object pattern, GetMember<object>(split.members, split.where, "pattern"));
  const std::string where = split.where + ".pattern";
  const auto named = [&where](Result<Regex> regex) {
    return regex.ok() ? std::move(regex) : Result<Regex>(regex.status().WithContext(where));
  };
  if (const auto source = Find(pattern, "Regex")) {
    ASSIGN_OR_RETURN(const auto text, Get<std::string_view>(*source, where + ".Regex"));
    return named(Regex::Compile(text));
  }
  if (const auto literal = Find(pattern, "String")) {
    ASSIGN_OR_RETURN(const auto text, Get<std::string_view>(*literal, where + ".String"));
    if (text.empty()) return InvalidArgument(where + ".String is empty");
    return named(Regex::Literal(text));
  }
  return InvalidArgument(where + " must have Regex or String");
}

Result<Normalizer> ReadNormalizer(const object& root) {
  ASSIGN_OR_RETURN(const auto parts, GetComponents(root, "normalizer", "normalizers"));
  Normalizer normalizer;
  for (const Component& part : parts) {
    if (part.type == "NFC") {
      normalizer.AddNfc();
    } else if (part.type == "Prepend") {
      ASSIGN_OR_RETURN(const auto prefix,
                       GetMember<std::string_view>(part.members, part.where, "prepend"));
      normalizer.AddPrepend(std::string(prefix));
    } else if (part.type == "Replace") {
      ASSIGN_OR_RETURN(Regex pattern, ReadPattern(part));
      ASSIGN_OR_RETURN(const auto content,
                       GetMember<std::string_view>(part.members, part.where, "content"));
      normalizer.AddReplace(std::move(pattern), std::string(content));
    } else {
      return Unsupported(part.where, fmt::format("'{}'", part.type), "NFC, Prepend and Replace");
    }
  }
  return normalizer;
}

Result<SplitBehavior> ReadBehavior(const Component& split) {
  ASSIGN_OR_RETURN(const auto name,
                   GetMember<std::string_view>(split.members, split.where, "behavior"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Unsupported(split.where + ".behavior", fmt::format("'{}'", name),
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

Status AddSplit(const Component& split, PreTokenizer* pre_tokenizer) {
  ASSIGN_OR_RETURN(Regex pattern, ReadPattern(split));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(split));
  ASSIGN_OR_RETURN(const bool invert, GetMemberOr(split.members, split.where, "invert", false));
  pre_tokenizer->AddSplit(std::move(pattern), behavior, invert);
  return OkStatus();
}

Status AddByteLevel(const Component& part, PreTokenizer* pre_tokenizer) {
  ASSIGN_OR_RETURN(const bool prefix_space,
                   GetMemberOr(part.members, part.where, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, GetMemberOr(part.members, part.where, "use_regex", true));
  if (prefix_space) pre_tokenizer->AddPrefixSpace();
  if (!use_regex) return OkStatus();
  ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(kGpt2Pattern));
  pre_tokenizer->AddSplit(std::move(pattern), SplitBehavior::kIsolated, false);
  return OkStatus();
}

Status AddMetaspace(const Component& part, PreTokenizer* pre_tokenizer) {
  using Prepend = PreTokenizer::Prepend;
  ASSIGN_OR_RETURN(const auto mark,
                   GetMember<std::string_view>(part.members, part.where, "replacement"));
  ASSIGN_OR_RETURN(const bool split, GetMemberOr(part.members, part.where, "split", true));
  ASSIGN_OR_RETURN(const bool prefix_space,
                   GetMemberOr(part.members, part.where, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const auto scheme,
                   GetMemberOr<std::string_view>(part.members, part.where, "prepend_scheme",
                                                 prefix_space ? "always" : "never"));
  if (mark.empty()) return InvalidArgument(part.where + ".replacement is empty");
  if (scheme != "always" && scheme != "never" && scheme != "first") {
    return Unsupported(part.where + ".prepend_scheme", fmt::format("'{}'", scheme),
                       "always, never and first");
  }
  const Prepend prepend = scheme == "always"  ? Prepend::kAlways
                          : scheme == "first" ? Prepend::kFirst
                                              : Prepend::kNever;
  pre_tokenizer->AddMetaspace(std::string(mark), prepend, split);
  return OkStatus();
}

// ByteLevel maps bytes to the vocabulary's alphabet, so it must be there and come last; a
// vocabulary of text has none.
Result<PreTokenizer> ReadPreTokenizer(const object& root, bool text_vocabulary) {
  ASSIGN_OR_RETURN(const auto parts, GetComponents(root, "pre_tokenizer", "pretokenizers"));
  PreTokenizer pre_tokenizer;
  for (const Component& part : parts) {
    if (part.type == "Split") {
      RETURN_IF_ERROR(AddSplit(part, &pre_tokenizer));
    } else if (part.type == "Metaspace" && text_vocabulary) {
      RETURN_IF_ERROR(AddMetaspace(part, &pre_tokenizer));
    } else if (part.type == "ByteLevel" && !text_vocabulary) {
      if (&part != &parts.back()) {
        return InvalidArgument(part.where + " 'ByteLevel' must be the last pre-tokenizer");
      }
      RETURN_IF_ERROR(AddByteLevel(part, &pre_tokenizer));
    } else {
      return Unsupported(part.where, fmt::format("'{}'", part.type),
                         text_vocabulary ? "Split and Metaspace (model.byte_fallback is true)"
                                         : "Split and ByteLevel");
    }
  }
  if (!text_vocabulary && (parts.empty() || parts.back().type != "ByteLevel")) {
    return Unsupported("pre_tokenizer", "without ByteLevel",
                       "byte-level BPE, and BPE with byte_fallback");
  }
  return pre_tokenizer;
}

// Appends the ids of the template's special token `name`.
Status AppendTemplateToken(const Component& part, std::string_view name,
                           std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const object known,
                   GetMember<object>(part.members, part.where, "special_tokens"));
  const std::string where = part.where + ".special_tokens";
  ASSIGN_OR_RETURN(const object token, GetMember<object>(known, where, name));
  ASSIGN_OR_RETURN(const array list,
                   GetMember<array>(token, fmt::format("{}.{}", where, name), "ids"));
  for (const element& value : list) {
    ASSIGN_OR_RETURN(const int64_t id, Get<int64_t>(value, where));
    if (id < 0 || id > Vocabulary::kTokenIdMax) {
      return InvalidArgument(fmt::format("{}.{}: id {}, allowed are 0 to {}", where, name, id,
                                         Vocabulary::kTokenIdMax));
    }
    ids->push_back(static_cast<int32_t>(id));
  }
  return OkStatus();
}

// "single": special tokens before and after the one Sequence.
Status ReadTemplate(const Component& part, TokenizerDefinition* definition) {
  ASSIGN_OR_RETURN(const array pieces, GetMember<array>(part.members, part.where, "single"));
  bool after = false;
  for (const element& value : pieces) {
    ASSIGN_OR_RETURN(const object piece, Get<object>(value, part.where + ".single"));
    if (Find(piece, "Sequence")) {
      if (after) return Unsupported(part.where, "with two sequences in 'single'", "one");
      after = true;
      continue;
    }
    ASSIGN_OR_RETURN(const object token,
                     GetMember<object>(piece, part.where + ".single", "SpecialToken"));
    ASSIGN_OR_RETURN(const auto name,
                     GetMember<std::string_view>(token, part.where + ".single", "id"));
    RETURN_IF_ERROR(AppendTemplateToken(
        part, name, after ? &definition->prompt_suffix : &definition->prompt_prefix));
  }
  return OkStatus();
}

Status ReadPostProcessor(const object& root, TokenizerDefinition* definition) {
  ASSIGN_OR_RETURN(const auto parts, GetComponents(root, "post_processor", "processors"));
  bool has_template = false;
  for (const Component& part : parts) {
    if (part.type == "ByteLevel") continue;
    if (part.type != "TemplateProcessing") {
      return Unsupported(part.where, fmt::format("'{}'", part.type),
                         "ByteLevel and TemplateProcessing");
    }
    if (has_template) return Unsupported(part.where, "after another template", "one template");
    has_template = true;
    RETURN_IF_ERROR(ReadTemplate(part, definition));
  }
  return OkStatus();
}

struct DecoderRules {
  Vocabulary::TextSpelling spelling;
  int32_t leading_spaces_dropped = 0;
};

// Of a vocabulary of text: Replace, ByteFallback, Fuse and Strip, in this order.
Result<DecoderRules> ReadTextDecoder(const std::vector<Component>& parts) {
  DecoderRules rules;
  const std::string_view order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  size_t next = 0;
  bool has_fallback = false;
  for (const Component& part : parts) {
    while (next < std::size(order) && order[next] != part.type) ++next;
    if (next++ == std::size(order)) {
      return Unsupported(part.where, fmt::format("'{}'", part.type),
                         "Replace, ByteFallback, Fuse and Strip in this order");
    }
    has_fallback = has_fallback || part.type == "ByteFallback";
    if (part.type == "Replace") {
      ASSIGN_OR_RETURN(const object pattern,
                       GetMember<object>(part.members, part.where, "pattern"));
      ASSIGN_OR_RETURN(const auto from,
                       GetMember<std::string_view>(pattern, part.where + ".pattern", "String"));
      ASSIGN_OR_RETURN(const auto to,
                       GetMember<std::string_view>(part.members, part.where, "content"));
      rules.spelling = {std::string(from), std::string(to)};
    } else if (part.type == "Strip") {
      ASSIGN_OR_RETURN(const auto content,
                       GetMember<std::string_view>(part.members, part.where, "content"));
      ASSIGN_OR_RETURN(const int64_t start, GetMember<int64_t>(part.members, part.where, "start"));
      ASSIGN_OR_RETURN(const int64_t stop, GetMember<int64_t>(part.members, part.where, "stop"));
      if (content != " " || start < 0 || start > 16 || stop != 0) {
        return Unsupported(part.where, "other than up to 16 spaces at the start", "those");
      }
      rules.leading_spaces_dropped = static_cast<int32_t>(start);
    }
  }
  if (!has_fallback) return Unsupported("decoder", "without ByteFallback", "one with it");
  return rules;
}

Result<DecoderRules> ReadDecoder(const object& root, bool text_vocabulary) {
  ASSIGN_OR_RETURN(const auto parts, GetComponents(root, "decoder", "decoders"));
  if (text_vocabulary) return ReadTextDecoder(parts);
  if (parts.size() != 1) {
    return Unsupported("decoder", fmt::format("with {} parts", parts.size()), "one ByteLevel");
  }
  if (parts[0].type != "ByteLevel") {
    return Unsupported(parts[0].where, fmt::format("'{}'", parts[0].type), "ByteLevel");
  }
  return DecoderRules{};
}

Status CheckModelOptions(const object& model) {
  ASSIGN_OR_RETURN(const auto type, GetMember<std::string_view>(model, "model", "type"));
  if (type != "BPE") return Unsupported("model.type", fmt::format("'{}'", type), "BPE");
  if (const auto dropout = Find(model, "dropout")) {
    double value = 0;
    if (dropout->get(value) != simdjson::SUCCESS || value != 0) {
      return Unsupported("model.dropout", "other than null", "null");
    }
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const auto affix, GetMemberOr<std::string_view>(model, "model", key, ""));
    if (!affix.empty()) {
      return Unsupported(fmt::format("model.{}", key), fmt::format("'{}'", affix), "an empty one");
    }
  }
  return OkStatus();
}

Result<Vocabulary> ReadVocabulary(const object& model,
                                  std::optional<Vocabulary::TextSpelling> spelling) {
  ASSIGN_OR_RETURN(const object entries, GetMember<object>(model, "model", "vocab"));
  Vocabulary vocabulary;
  if (spelling) vocabulary.SpellAsText(*std::move(spelling));
  vocabulary.Reserve(entries.size());
  // Some at a time: memory fetches the places of the next while one is added.
  std::vector<std::pair<std::string_view, int64_t>> waiting;
  const auto add = [&]() -> Status {
    for (const auto& [content, id] : waiting) {
      const Status added = vocabulary.Add(content, id);
      if (!added.ok()) return added.WithContext("model.vocab");
    }
    waiting.clear();
    return OkStatus();
  };
  for (const auto& [content, value] : entries) {
    int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS) {
      return InvalidArgument(
          fmt::format("model.vocab: the id of token '{}' must be an integer from 0 to {}", content,
                      Vocabulary::kTokenIdMax));
    }
    vocabulary.Prefetch(content);
    waiting.emplace_back(content, id);
    if (waiting.size() == kLookUpsAtOnce) RETURN_IF_ERROR(add());
  }
  RETURN_IF_ERROR(add());
  return vocabulary;
}

struct MergeParts {
  std::string_view left;
  std::string_view right;
};

// "a b" or ["a", "b"].
std::optional<MergeParts> ReadMerge(const element& value) {
  std::string_view line;
  if (value.get(line) == simdjson::SUCCESS) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return std::nullopt;
    }
    return MergeParts{line.substr(0, space), line.substr(space + 1)};
  }
  array pair;
  MergeParts parts;
  if (value.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
      pair.at(0).get(parts.left) != simdjson::SUCCESS ||
      pair.at(1).get(parts.right) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  return parts;
}

// An array's size() saturates in simdjson; this is exact.
size_t CountMerges(const array& merges) {
  size_t count = 0;
  for ([[maybe_unused]] const element& merge : merges) ++count;
  return count;
}

// Looks tokens up some merges at a time: memory fetches the next while one is compared.
class MergeReader {
 public:
  MergeReader(const Vocabulary& vocabulary, MergeTable* merges)
      : vocabulary_(vocabulary), merges_(*merges) {}

  size_t count() const { return done_ + waiting_.size(); }
  Status Add(const MergeParts& parts) {
    vocabulary_.Prefetch(parts.left);
    vocabulary_.Prefetch(parts.right);
    waiting_.push_back(parts);
    return waiting_.size() < kLookUpsAtOnce ? OkStatus() : Finish();
  }
  // Appends what waits.
  Status Finish() {
    found_.clear();
    for (const MergeParts& parts : waiting_) {
      const auto left = vocabulary_.Find(parts.left);
      const auto right = vocabulary_.Find(parts.right);
      if (!left || !right) return NoToken(!left ? parts.left : parts.right);
      ASSIGN_OR_RETURN(const int32_t merged, FindMerged(parts));
      merges_.Prefetch(*left, *right);
      found_.push_back({*left, *right, merged});
    }
    for (const Found& found : found_) merges_.Append(found.left, found.right, found.merged);
    done_ += waiting_.size();
    waiting_.clear();
    return OkStatus();
  }

 private:
  struct Found {
    int32_t left, right, merged;
  };

  Status NoToken(std::string_view token) const {
    return InvalidArgument(fmt::format("model.merges[{}]: token '{}' is not in model.vocab",
                                       done_ + found_.size(), token));
  }
  // Most vocabularies number the tokens in the order of the merges that make them.
  Result<int32_t> FindMerged(const MergeParts& parts) {
    merged_.assign(parts.left).append(parts.right);
    if (vocabulary_.Content(last_merged_ + 1) == merged_) return ++last_merged_;
    const auto id = vocabulary_.Find(merged_);
    if (!id) return NoToken(merged_);
    last_merged_ = *id;
    return *id;
  }

  const Vocabulary& vocabulary_;
  MergeTable& merges_;
  std::vector<MergeParts> waiting_;
  std::vector<Found> found_;
  size_t done_ = 0;
  std::string merged_;
  int32_t last_merged_ = -1;
};

Result<MergeTable> ReadMerges(const object& model, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const array list, GetMember<array>(model, "model", "merges"));
  const size_t count = CountMerges(list);
  if (count > kMergesMax) {
    return InvalidArgument(
        fmt::format("model.merges has {} merges, at most {} are allowed", count, kMergesMax));
  }
  MergeTable merges(count);
  MergeReader reader(vocabulary, &merges);
  for (const element& value : list) {
    const auto parts = ReadMerge(value);
    if (!parts) {
      return InvalidArgument(fmt::format(
          "model.merges[{}] must be two tokens, as \"a b\" or as [\"a\", \"b\"]", reader.count()));
    }
    RETURN_IF_ERROR(reader.Add(*parts));
  }
  RETURN_IF_ERROR(reader.Finish());
  return merges;
}

// `text_spelling`: of a vocabulary of text.
Result<Bpe> ReadModel(const object& model, std::optional<Vocabulary::TextSpelling> text_spelling) {
  RETURN_IF_ERROR(CheckModelOptions(model));
  BpeOptions options;
  options.byte_fallback = text_spelling.has_value();
  ASSIGN_OR_RETURN(options.ignore_merges, GetMemberOr(model, "model", "ignore_merges", false));
  ASSIGN_OR_RETURN(options.fuse_unknown, GetMemberOr(model, "model", "fuse_unk", false));
  ASSIGN_OR_RETURN(const auto unknown,
                   GetMemberOr<std::string_view>(model, "model", "unk_token", ""));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(model, std::move(text_spelling)));
  if (options.byte_fallback && !unknown.empty()) {
    const auto id = vocabulary.Find(unknown);
    if (!id) {
      return InvalidArgument(
          fmt::format("model.unk_token: token '{}' is not in model.vocab", unknown));
    }
    options.unknown = *id;
  }
  ASSIGN_OR_RETURN(MergeTable merges, ReadMerges(model, vocabulary));
  Bpe bpe(std::move(vocabulary), std::move(merges), options);
  // With a token for every byte nothing is ever unknown.
  if (!options.byte_fallback && !unknown.empty() && !bpe.HasAllBytes()) {
    return Unsupported("model.unk_token", fmt::format("'{}'", unknown),
                       "null, or a vocabulary with all 256 bytes");
  }
  return bpe;
}

Result<AddedToken> ReadAddedToken(const element& value, const std::string& where) {
  ASSIGN_OR_RETURN(const object members, Get<object>(value, where));
  ASSIGN_OR_RETURN(const auto content, GetMember<std::string_view>(members, where, "content"));
  if (content.empty() || content.size() > AddedToken::kContentBytesMax) {
    return InvalidArgument(fmt::format("{}.content has {} bytes, allowed are 1 to {}", where,
                                       content.size(), AddedToken::kContentBytesMax));
  }
  ASSIGN_OR_RETURN(const int64_t id, GetMember<int64_t>(members, where, "id"));
  if (id < 0 || id > Vocabulary::kTokenIdMax) {
    return InvalidArgument(
        fmt::format("{}.id is {}, allowed are 0 to {}", where, id, Vocabulary::kTokenIdMax));
  }
  AddedToken token;
  token.content = content;
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.single_word, GetMemberOr(members, where, "single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, GetMemberOr(members, where, "lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, GetMemberOr(members, where, "rstrip", false));
  ASSIGN_OR_RETURN(token.special, GetMemberOr(members, where, "special", false));
  ASSIGN_OR_RETURN(token.normalized, GetMemberOr(members, where, "normalized", !token.special));
  return token;
}

Status ReadAddedTokens(const object& root, TokenizerDefinition* definition) {
  const auto value = Find(root, "added_tokens");
  if (!value) return OkStatus();
  ASSIGN_OR_RETURN(const array list, Get<array>(*value, "added_tokens"));
  size_t i = 0;
  for (const element& entry : list) {
    const std::string where = fmt::format("added_tokens[{}]", i++);
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry, where));
    const Status added = definition->bpe.AddToken(token.content, token.id);
    if (!added.ok()) return added.WithContext(where);
    definition->added_tokens.push_back(std::move(token));
  }
  return OkStatus();
}

Result<TokenizerDefinition> ReadDefinition(const object& root) {
  bool text_vocabulary = false;
  object model;
  if (const auto found = Find(root, "model"); found && found->get(model) == simdjson::SUCCESS) {
    ASSIGN_OR_RETURN(text_vocabulary, GetMemberOr(model, "model", "byte_fallback", false));
  }
  ASSIGN_OR_RETURN(Normalizer normalizer, ReadNormalizer(root));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, ReadPreTokenizer(root, text_vocabulary));
  ASSIGN_OR_RETURN(DecoderRules decoder, ReadDecoder(root, text_vocabulary));
  std::optional<Vocabulary::TextSpelling> spelling;
  if (text_vocabulary) spelling = std::move(decoder.spelling);
  ASSIGN_OR_RETURN(model, GetMember<object>(root, "file", "model"));
  ASSIGN_OR_RETURN(Bpe bpe, ReadModel(model, std::move(spelling)));
  TokenizerDefinition definition{std::move(bpe),
                                 {},
                                 std::move(normalizer),
                                 std::move(pre_tokenizer),
                                 decoder.leading_spaces_dropped,
                                 {},
                                 {}};
  RETURN_IF_ERROR(ReadPostProcessor(root, &definition));
  RETURN_IF_ERROR(ReadAddedTokens(root, &definition));
  return definition;
}

}  // namespace

Result<TokenizerDefinition> ParseTokenizerJson(std::string_view json, const std::string& name) {
  if (json.size() > kJsonBytesMax) {
    return InvalidArgument(fmt::format("{}: {} bytes, a tokenizer.json has at most {}", name,
                                       json.size(), kJsonBytesMax));
  }
  simdjson::dom::parser parser(kJsonBytesMax);
  simdjson::error_code error = parser.allocate(json.size(), kJsonDepthMax);
  element root;
  if (error == simdjson::SUCCESS) {
    error = parser.parse(simdjson::padded_string(json)).get(root);
  }
  if (error != simdjson::SUCCESS) {
    return InvalidArgument(
        fmt::format("{}: not usable JSON: {}", name, simdjson::error_message(error)));
  }
  object members;
  if (root.get(members) != simdjson::SUCCESS) {
    return InvalidArgument(
        fmt::format("{}: must hold a JSON object, found {}", name, TypeName(root)));
  }
  auto definition = ReadDefinition(members);
  if (!definition.ok()) return definition.status().WithContext(name);
  return definition;
}

}  // namespace expertflow

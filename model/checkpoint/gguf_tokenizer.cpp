#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "common/json_string.h"
#include "model/checkpoint/gguf_model.h"

namespace expertflow {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kSpace = "\u2581";  // of SentencePiece

enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;

  bool IsAdded(size_t id) const { return types[id] == kControl || types[id] == kUserDefined; }
};

std::string Key(std::string_view name) {
  return fmt::format("{}{}", kPrefix, name);
}

Result<Vocabulary> ReadVocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.tokens, file.Texts(Key("tokens")));
  if (vocabulary.tokens.empty() || vocabulary.tokens.size() > (size_t{1} << 24)) {
    return file.Error(Key("tokens"), fmt::format("{} tokens", vocabulary.tokens.size()));
  }
  vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
  if (file.FindValue(Key("token_type")) != nullptr) {
    ASSIGN_OR_RETURN(vocabulary.types, file.Ints(Key("token_type")));
  }
  if (vocabulary.types.size() == vocabulary.tokens.size()) return vocabulary;
  return file.Error(
      Key("token_type"),
      fmt::format("expected {}, found {}", vocabulary.tokens.size(), vocabulary.types.size()));
}

std::string AddedTokens(const Vocabulary& vocabulary) {
  std::string json;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.IsAdded(id)) continue;
    json += fmt::format(
        R"({}{{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, )"
        R"("normalized": false, "special": {}}})",
        json.empty() ? "" : ",\n", id, JsonQuoted(vocabulary.tokens[id]),
        vocabulary.types[id] == kControl);
  }
  return json;
}

// Without padding, and without what is an added token.
std::string VocabularyJson(const Vocabulary& vocabulary) {
  std::string json;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.IsAdded(id) || vocabulary.types[id] == kUnused) continue;
    json +=
        fmt::format("{}{}: {}", json.empty() ? "" : ",\n", JsonQuoted(vocabulary.tokens[id]), id);
  }
  return json;
}

// "<s>" before a text that stands alone.
Result<std::string> PostProcessor(const GgufFile& file, const Vocabulary& vocabulary,
                                  bool add_bos_by_default) {
  ASSIGN_OR_RETURN(const bool add_eos, file.BoolOr(Key("add_eos_token"), false));
  if (add_eos) return file.Error(Key("add_eos_token"), "true is not supported");
  ASSIGN_OR_RETURN(const bool add_bos, file.BoolOr(Key("add_bos_token"), add_bos_by_default));
  if (!add_bos) return std::string("null");
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  ASSIGN_OR_RETURN(const int64_t bos, file.Int(Key("bos_token_id"), 0, last));
  const std::string content = JsonQuoted(vocabulary.tokens[static_cast<size_t>(bos)]);
  return fmt::format(
      R"({{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": {0}, "type_id": 0}}}}, )"
      R"({{"Sequence": {{"id": "A", "type_id": 0}}}}], "pair": [], )"
      R"("special_tokens": {{{0}: {{"id": {0}, "ids": [{1}], "tokens": [{0}]}}}}}})",
      content, bos);
}

// --- byte-level BPE ----------------------------------------------------------------------------

// How a text is cut before the merges. The expressions are those of the models' published
// tokenizer.json.
struct PreTokenizer {
  std::string_view name;
  bool nfc;
  bool ignore_merges;
  std::vector<std::string_view> expressions;  // empty: GPT-2's own
};

const std::vector<PreTokenizer>& PreTokenizers() {
  static constexpr std::string_view kQwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  static constexpr std::string_view kLlama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  static constexpr std::string_view kDeepseek3 =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
      "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  static constexpr std::string_view kGpt4o =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const std::vector<PreTokenizer> kAll = {
      {"gpt-2", false, false, {}},
      {"olmo", true, false, {}},
      {"qwen2", true, false, {kQwen2}},
      {"llama-bpe", false, true, {kLlama3}},
      {"dbrx", false, false, {kLlama3}},
      {"deepseek-v3",
       false,
       false,
       {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", kDeepseek3}},
      {"gpt-4o", false, false, {kGpt4o}},
  };
  return kAll;
}

Result<const PreTokenizer*> FindPreTokenizer(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string name, file.Text(Key("pre")));
  std::string known;
  for (const PreTokenizer& candidate : PreTokenizers()) {
    if (candidate.name == name) return &candidate;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  return file.Error(Key("pre"), fmt::format("'{}' is not supported; known are {}; give the model's "
                                            "tokenizer.json with --tokenizer",
                                            name, known));
}

std::string PreTokenizerJson(const PreTokenizer& pre) {
  const auto byte_level = [](bool use_regex) {
    return fmt::format(
        R"({{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, )"
        R"("use_regex": {}}})",
        use_regex);
  };
  if (pre.expressions.empty()) return byte_level(true);
  std::string steps;
  for (const std::string_view expression : pre.expressions) {
    steps +=
        fmt::format(R"({{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", )"
                    "\"invert\": false}},\n",
                    JsonQuoted(expression));
  }
  return fmt::format(R"({{"type": "Sequence", "pretokenizers": [{}{}]}})", steps,
                     byte_level(false));
}

Result<std::string> ByteLevelJson(const GgufFile& file, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(file));
  ASSIGN_OR_RETURN(const auto merges, file.Texts(Key("merges")));
  ASSIGN_OR_RETURN(const std::string post, PostProcessor(file, vocabulary, false));
  std::string merges_json;
  for (const std::string_view merge : merges) {
    merges_json += fmt::format("{}{}", merges_json.empty() ? "" : ",\n", JsonQuoted(merge));
  }
  return fmt::format(
      R"({{"version": "1.0", "added_tokens": [{}],
"normalizer": {}, "pre_tokenizer": {}, "post_processor": {},
"decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}},
"model": {{"type": "BPE", "byte_fallback": false, "fuse_unk": false, "ignore_merges": {},
"vocab": {{{}}}, "merges": [{}]}}}})",
      AddedTokens(vocabulary), pre->nfc ? R"({"type": "NFC"})" : "null", PreTokenizerJson(*pre),
      post, pre->ignore_merges, VocabularyJson(vocabulary), merges_json);
}

// --- SentencePiece -----------------------------------------------------------------------------

// Two pieces that are joined, and the score of what they give: the best are joined first.
struct Join {
  std::string_view left, right;
  float score = 0;
  size_t left_id = 0, right_id = 0;
};

size_t Characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// A tokenizer.json has merges where SentencePiece has scores: all ways in which a token is two
// others, by descending score, then length.
std::string JoinsJson(const Vocabulary& vocabulary, const std::vector<float>& scores) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.IsAdded(id)) ids.emplace(vocabulary.tokens[id], id);
  }
  std::vector<Join> joins;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (vocabulary.types[id] != kNormal) continue;
    const size_t begin = joins.size();
    for (size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<unsigned char>(token[at]) & 0xc0) == 0x80) continue;
      const auto left = ids.find(token.substr(0, at)), right = ids.find(token.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      joins.push_back({left->first, right->first, scores[id], left->second, right->second});
    }
    std::sort(joins.begin() + static_cast<ptrdiff_t>(begin), joins.end(),
              [](const Join& a, const Join& b) {
                return std::tie(a.left_id, a.right_id) < std::tie(b.left_id, b.right_id);
              });
  }
  std::stable_sort(joins.begin(), joins.end(), [](const Join& a, const Join& b) {
    return std::tuple(a.score, Characters(a.left), Characters(a.right)) >
           std::tuple(b.score, Characters(b.left), Characters(b.right));
  });
  std::string json;
  for (const Join& join : joins) {
    json += fmt::format("{}[{}, {}]", json.empty() ? "" : ",\n", JsonQuoted(join.left),
                        JsonQuoted(join.right));
  }
  return json;
}

Result<std::string> SentencePieceJson(const GgufFile& file, const Vocabulary& vocabulary) {
  const GgufValue* values = file.FindValue(Key("scores"));
  if (values == nullptr || !values->is_array || values->type != GgufType::kF32 ||
      values->count != vocabulary.tokens.size()) {
    return file.Error(Key("scores"),
                      fmt::format("expected {} float32 numbers", vocabulary.tokens.size()));
  }
  std::vector<float> scores(vocabulary.tokens.size());
  std::memcpy(scores.data(), values->bytes.data(), values->bytes.size());
  if (std::any_of(scores.begin(), scores.end(), [](float score) { return score != score; })) {
    return file.Error(Key("scores"), "holds NaN");
  }
  for (const char* key : {"precompiled_charsmap", "remove_extra_whitespaces"}) {
    if (file.FindValue(Key(key)) != nullptr) return file.Error(Key(key), "is not supported");
  }
  ASSIGN_OR_RETURN(const bool prefix, file.BoolOr(Key("add_space_prefix"), true));
  ASSIGN_OR_RETURN(const std::string post, PostProcessor(file, vocabulary, true));
  const auto unknown = std::find(vocabulary.types.begin(), vocabulary.types.end(), kUnknown);
  if (unknown == vocabulary.types.end()) return file.Error(Key("token_type"), "none is unknown");
  const std::string_view unknown_token =
      vocabulary.tokens[static_cast<size_t>(unknown - vocabulary.types.begin())];
  const std::string prepend =
      prefix ? fmt::format(R"({{"type": "Prepend", "prepend": "{}"}}, )", kSpace) : "";
  return fmt::format(
      R"({{"version": "1.0", "added_tokens": [{0}],
"normalizer": {{"type": "Sequence", "normalizers": [{1}{{"type": "Replace", "pattern": {{"String": " "}}, "content": "{2}"}}]}},
"pre_tokenizer": null, "post_processor": {3},
"decoder": {{"type": "Sequence", "decoders": [{{"type": "Replace", "pattern": {{"String": "{2}"}}, "content": " "}},
{{"type": "ByteFallback"}}, {{"type": "Fuse"}}{4}]}},
"model": {{"type": "BPE", "unk_token": {5}, "fuse_unk": true, "byte_fallback": true,
"vocab": {{{6}}}, "merges": [{7}]}}}})",
      AddedTokens(vocabulary), prepend, kSpace, post,
      prefix ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "",
      JsonQuoted(unknown_token), VocabularyJson(vocabulary), JoinsJson(vocabulary, scores));
}

}  // namespace

Result<std::string> GgufTokenizerConfigJson(const GgufFile& file) {
  constexpr const char* kTemplate = "tokenizer.chat_template";
  struct Name {
    const char* gguf;
    const char* folder;
  };
  static constexpr Name kNames[] = {{"bos_token_id", "bos_token"},
                                    {"eos_token_id", "eos_token"},
                                    {"padding_token_id", "pad_token"},
                                    {"unknown_token_id", "unk_token"}};
  std::string json;
  const auto put = [&](std::string_view key, std::string_view text) {
    json += fmt::format("{}{}: {}", json.empty() ? "" : ", ", JsonQuoted(key), JsonQuoted(text));
  };
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(file));
  const auto last = static_cast<int64_t>(vocabulary.tokens.size()) - 1;
  for (const Name& name : kNames) {
    const std::string key = Key(name.gguf);
    if (file.FindValue(key) == nullptr) continue;
    ASSIGN_OR_RETURN(const int64_t id, file.Int(key, 0, last));
    put(name.folder, vocabulary.tokens[static_cast<size_t>(id)]);
  }
  if (file.FindValue(kTemplate) != nullptr) {
    ASSIGN_OR_RETURN(const std::string source, file.Text(kTemplate));
    put("chat_template", source);
  }
  return fmt::format("{{{}}}", json);
}

Result<std::string> GgufTokenizerJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string model, file.Text(Key("model")));
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(file));
  if (model == "gpt2") return ByteLevelJson(file, vocabulary);
  if (model == "llama") return SentencePieceJson(file, vocabulary);
  return file.Error(Key("model"), fmt::format("'{}' is not supported; known are gpt2 and llama; "
                                              "give the model's tokenizer.json with --tokenizer",
                                              model));
}

}  // namespace expertflow

// GGUF files against the same values in a plain folder: names, layouts, block types, configs and
// tokenizers say the same, and what the engine computes is equal bit by bit. What is wrong in one
// is refused by a line that names the tensor or the key.
#include "tests/golden/gguf_models.h"

#include <gmock/gmock.h>

#include <fstream>

#include "expert_store/synth.h"
#include "model/checkpoint/gguf_model.h"
#include "model/checkpoint/model_files.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/golden/golden_model.h"

namespace expertflow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Golden(const std::string& name) {
  return EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name;
}

class GgufTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "gguf-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const GgufWriter& gguf) {
    const std::string path = folder_ + "/model.gguf";
    std::ofstream(path, std::ios::binary) << gguf.Content();
    return path;
  }
  std::string ConfigOf(const std::string& path) {
    const auto text = ReadModelText(path, "config.json", 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status().ToString();
    return text.ok() ? *text : "{}";
  }

  using Logits = std::map<uint32_t, std::vector<float>>;
  static Logits Run(const GoldenModel& model, const EngineSetup& setup) {
    GoldenEngine golden(model, setup);
    StartSequence start;
    start.sequence = {1};
    for (int32_t i = 0; i < 60; ++i) start.tokens.push_back((i * 37 + 11) % 256);
    start.prompt_tokens = static_cast<uint32_t>(start.tokens.size());
    start.max_new_tokens = 4;
    start.capture_logits = true;
    EXPECT_TRUE(golden.engine().Start(start).ok());
    Logits logits;
    for (const auto& captured : golden.RunToEnd().captured) {
      logits[captured.position] = captured.logits;
    }
    return logits;
  }

  void ExpectSameModel(const GgufPair& pair) {
    const std::string path = Write(pair.gguf);
    const GoldenModel gguf(path, ConfigOf(path));
    WriteTestCheckpoint(folder_ + "/plain", pair.plain, pair.config);
    const GoldenModel plain(folder_ + "/plain");
    const ModelShape &found = gguf.architecture().shape(), &expected = plain.architecture().shape();
    EXPECT_EQ(found.architecture, expected.architecture);
    EXPECT_EQ(found.stop_tokens, expected.stop_tokens);
    EXPECT_EQ(found.context, expected.context);
    const Logits logits = Run(gguf, {.in_place = false, .resident_percent = 30});
    EXPECT_GE(logits.size(), 60u);
    EXPECT_EQ(logits, Run(plain, {}));
  }

  std::string folder_;
};

TEST_F(GgufTest, EveryArchitectureIsTheFoldersModel) {
  for (const uint32_t type : {0u, 30u}) {  // F32 and BF16, both exact
    SCOPED_TRACE(type);
    ExpectSameModel(QwenAsGguf(Golden("qwen2_moe"), "qwen2moe", GgufPlain(type)));
    ExpectSameModel(QwenAsGguf(Golden("qwen2_moe_gqa"), "qwen2moe", GgufPlain(type)));
    ExpectSameModel(QwenAsGguf(Golden("qwen3_moe"), "qwen3moe", GgufPlain(type)));
    ExpectSameModel(MixtralAsGguf(Golden("mixtral"), GgufPlain(type)));
    ExpectSameModel(OlmoeAsGguf(Golden("olmoe"), GgufPlain(type)));
    ExpectSameModel(GptOssAsGguf(Golden("gpt_oss"), GgufPlain(type)));
    for (const bool split : {false, true}) {
      ExpectSameModel(DeepseekAsGguf(Golden("deepseek_v2_lite"), GgufPlain(type), split));
      ExpectSameModel(DeepseekAsGguf(Golden("deepseek_v3"), GgufPlain(type), split));
    }
  }
}

TEST_F(GgufTest, BlockTypesAreTheValuesThatTheyStandFor) {
  for (const GgufForm& form : {GgufPlain(1), GgufQ8_0(), GgufQ4_0(), GgufMxfp4()}) {
    SCOPED_TRACE(form.type);
    ExpectSameModel(MixtralAsGguf(Golden("mixtral"), form));
    ExpectSameModel(QwenAsGguf(Golden("qwen2_moe_gqa"), "qwen2moe", form));
  }
}

// Experts of Q4_0 and Q8_0 are kept as they are by pack --quant.
TEST_F(GgufTest, QuantisedStoresKeepTheSteps) {
  for (const auto& [form, dtype] :
       {std::pair(GgufQ4_0(), DType::kInt4), std::pair(GgufQ8_0(), DType::kInt8)}) {
    const GgufPair pair = MixtralAsGguf(Golden("mixtral"), form);
    const std::string path = Write(pair.gguf);
    const GoldenModel kept(path, ConfigOf(path));
    EXPECT_EQ(DTypeNames(kept.store().expert_dtypes()), DTypeName(dtype));
    const GoldenModel wider(path, ConfigOf(path), {.experts = DType::kInt8});
    EXPECT_EQ(Run(kept, {}), Run(wider, {}));
  }
}

// Blocks stay as they are, of experts and of everything else, each matrix in its own type.
TEST_F(GgufTest, BlocksAreKeptAndComputedWith) {
  auto config =
      nlohmann::json::parse(*ReadFileToString(Golden("mixtral") + "/config.json", 1 << 20));
  config["hidden_size"] = config["intermediate_size"] = 256;
  const std::string source = folder_ + "/source";
  const auto architecture = MakeArchitecture(*JsonConfig::Parse(config.dump(), "config.json"));
  ASSERT_TRUE(architecture.ok()) << architecture.status().ToString();
  ASSERT_TRUE(WriteSyntheticCheckpoint((*architecture)->weights(), config.dump(), source, {}).ok());
  const std::pair<DType, DType> kinds[] = {
      {DType::kQ4K, DType::kQ6K}, {DType::kQ5K, DType::kQ5K}, {DType::kQ4_1, DType::kQ5_1}};
  for (const auto& [most, some] : kinds) {
    SCOPED_TRACE(DTypeName(most));
    const GgufPair pair = MixtralAsGguf(source, GgufRandomBlocks(most), GgufRandomBlocks(some));
    const std::string path = Write(pair.gguf);
    const GoldenModel kept(path, ConfigOf(path));
    const ExpertBlock block = kept.store().Expert({LayerId(0), ExpertId(0)});
    EXPECT_EQ(block.types, (ExpertTypes{most, most, some}));
    EXPECT_EQ(kept.store().FindDense("model.embed_tokens.weight")->dtype, most);
    EXPECT_EQ(kept.store().FindDense("lm_head.weight")->dtype, some);
    EXPECT_EQ(kept.store().FindDense("model.layers.0.self_attn.q_proj.weight")->dtype, most);
    ExpectSameModel(pair);
    std::filesystem::remove_all(folder_ + "/plain");
  }
}

// A scale that is not finite is named, whether blocks are kept or not.
TEST_F(GgufTest, BlocksWithoutFiniteScalesAreRefused) {
  auto config =
      nlohmann::json::parse(*ReadFileToString(Golden("mixtral") + "/config.json", 1 << 20));
  config["hidden_size"] = config["intermediate_size"] = 256;
  const std::string source = folder_ + "/source";
  const auto architecture = MakeArchitecture(*JsonConfig::Parse(config.dump(), "config.json"));
  ASSERT_TRUE(WriteSyntheticCheckpoint((*architecture)->weights(), config.dump(), source, {}).ok());
  for (const auto& [dtype, at] : {std::pair(DType::kQ4K, 2), std::pair(DType::kQ6K, 208)}) {
    GgufPair pair = MixtralAsGguf(source, GgufRandomBlocks(dtype));
    std::string& bytes = pair.gguf.tensors()["blk.1.ffn_up_exps.weight"].bytes;
    bytes.replace(BlockBytes(dtype) * 5 + static_cast<size_t>(at), 2, std::string("\x00\x7c", 2));
    const auto checkpoint = Checkpoint::Open(Write(pair.gguf));
    ASSERT_TRUE(checkpoint.ok());
    const auto read = LoadModelConfig(folder_ + "/model.gguf");
    const auto model = MakeArchitecture(*read);
    for (const StoreSettings& settings :
         {StoreSettings{}, StoreSettings{.experts = DType::kInt8}}) {
      const auto layout = StoreLayout::Make((*model)->weights(), *checkpoint, "{}", settings);
      ASSERT_TRUE(layout.ok()) << layout.status().ToString();
      EXPECT_THAT(PackStore(*layout, folder_ + "/x.efstore", {}).message(),
                  AllOf(HasSubstr("'blk.1.ffn_up_exps.weight'"), HasSubstr("infinity")));
    }
  }
}

// A file as llama-gguf-split cuts it: the metadata in the first part, tensors in all.
std::vector<GgufWriter> InParts(const GgufWriter& whole, int64_t count) {
  std::vector<GgufWriter> parts(static_cast<size_t>(count));
  parts[0] = whole;
  parts[0].tensors().clear();
  GgufWriter tensors = whole;
  size_t next = 0;
  for (const auto& [name, tensor] : tensors.tensors()) {
    parts[next++ % parts.size()].tensors()[name] = tensor;
  }
  parts[0].Int("split.tensors.count", static_cast<int64_t>(next));
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].Int("split.no", static_cast<int64_t>(i));
    parts[i].Int("split.count", count);
  }
  return parts;
}

TEST_F(GgufTest, AFileInPartsIsTheWholeFile) {
  const GgufPair pair = MixtralAsGguf(Golden("mixtral"), GgufQ8_0());
  const std::string whole = Write(pair.gguf);
  const auto parts = InParts(pair.gguf, 3);
  const auto name = [&](size_t i) {
    return fmt::format("{}/m-{:05}-of-00003.gguf", folder_, i + 1);
  };
  const auto write = [&](size_t i, const GgufWriter& part) {
    std::ofstream(name(i), std::ios::binary) << part.Content();
  };
  for (size_t i = 0; i < parts.size(); ++i) write(i, parts[i]);
  EXPECT_EQ(ConfigOf(name(0)), ConfigOf(whole));
  EXPECT_EQ(Run(GoldenModel(name(0), ConfigOf(name(0))), {}),
            Run(GoldenModel(whole, ConfigOf(whole)), {}));
  const auto checkpoint = Checkpoint::Open(name(0));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_GT(checkpoint->file_bytes(), std::filesystem::file_size(whole));

  const auto error = [&](size_t first) { return Checkpoint::Open(name(first)).status().message(); };
  EXPECT_THAT(error(1), AllOf(HasSubstr("part 2 of 3; expected the first"),
                              HasSubstr("-00001-of-00003.gguf")));
  write(2, parts[1]);
  EXPECT_THAT(error(0), AllOf(HasSubstr(name(2)), HasSubstr("found part 2 of 3")));
  std::filesystem::remove(name(2));
  EXPECT_THAT(error(0), HasSubstr(name(2)));
  GgufWriter last = parts[2];
  last.tensors().erase(last.tensors().begin());
  write(2, last);
  EXPECT_THAT(error(0), AllOf(HasSubstr("split.tensors.count"), HasSubstr("the parts hold")));
  last = parts[2];
  GgufWriter second = parts[1];
  last.tensors().insert(*second.tensors().begin());
  write(2, last);
  EXPECT_THAT(error(0),
              AllOf(HasSubstr("is in two files"), HasSubstr(name(1)), HasSubstr(name(2))));
}

TEST_F(GgufTest, OlderMixtralFilesHaveEachExpertApart) {
  GgufPair pair = MixtralAsGguf(Golden("mixtral"), GgufQ8_0());
  auto& tensors = pair.gguf.tensors();
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* matrix : {"gate", "up", "down"}) {
      const auto all = tensors.extract(fmt::format("blk.{}.ffn_{}_exps.weight", layer, matrix));
      const GgufWriter::Tensor& tensor = all.mapped();
      const size_t bytes = tensor.bytes.size() / 8;
      for (size_t e = 0; e < 8; ++e) {
        tensors[fmt::format("blk.{}.ffn_{}.{}.weight", layer, matrix, e)] = {
            tensor.type, {tensor.shape[1], tensor.shape[2]}, tensor.bytes.substr(e * bytes, bytes)};
      }
    }
  }
  ExpectSameModel(pair);
}

TEST_F(GgufTest, TheTokenizerGivesTheFoldersIds) {
  GgufPair pair = QwenAsGguf(Golden("qwen2_moe"), "qwen2moe", GgufPlain(0));
  const std::string file = Golden("qwen2_moe") + "/tokenizer.json";
  WriteGgufTokenizer(*ReadFileToString(file, 1 << 20), "qwen2", &pair.gguf);
  pair.gguf.Text("tokenizer.chat_template", "{{ messages }}");
  pair.gguf.Int("tokenizer.ggml.bos_token_id", 296);
  const std::string path = Write(pair.gguf);
  const auto text = ReadModelText(path, "tokenizer.json", SIZE_MAX);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const auto found = Tokenizer::Parse(*text, path);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  const auto expected = Tokenizer::Load(file);
  ASSERT_TRUE(expected.ok());
  const auto cases = nlohmann::json::parse(
      *ReadFileToString(EXPERTFLOW_SOURCE_DIR "/tests/golden/tokenizer_cases.json", 1 << 20));
  size_t seen = 0;
  for (const auto& row : cases.at("cases")) {
    const auto string = row.at("text").get<std::string>();
    EXPECT_EQ(*(*found)->EncodePrompt(string), *(*expected)->EncodePrompt(string)) << string;
    ++seen;
  }
  EXPECT_GT(seen, 5u);
  const auto config = ReadModelText(path, "tokenizer_config.json", SIZE_MAX);
  ASSERT_TRUE(config.ok());
  const auto json = nlohmann::json::parse(*config);
  EXPECT_EQ(json["chat_template"], "{{ messages }}");
  EXPECT_EQ(json["bos_token"], "<|endoftext|>");
  pair.gguf.Bool("tokenizer.ggml.add_bos_token", true);
  const auto with_bos =
      Tokenizer::Parse(*ReadModelText(Write(pair.gguf), "tokenizer.json", SIZE_MAX), "bos");
  ASSERT_TRUE(with_bos.ok()) << with_bos.status().ToString();
  EXPECT_EQ((*with_bos)->EncodePrompt("a")->front(), 296);
}

// Scores instead of merges: the best pair is joined first.
TEST_F(GgufTest, SentencePieceScoresAreMerges) {
  GgufWriter gguf;
  const std::vector<std::string> tokens = {"<unk>",  "<s>", "</s>", "<0x41>", "\u2581a", "bc", "ab",
                                           "\u2581", "a",   "b",    "c",      "\u2581ab"};
  gguf.Text("tokenizer.ggml.model", "llama");
  gguf.Texts("tokenizer.ggml.tokens", tokens);
  gguf.Numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, 0, -1, -2, -3, -4, -5, -6, -7, -8});
  gguf.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1});
  gguf.Int("tokenizer.ggml.bos_token_id", 1);
  const auto text = ReadModelText(Write(gguf), "tokenizer.json", SIZE_MAX);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const auto tokenizer = Tokenizer::Parse(*text, "spm");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("abc"),
            (std::vector<int32_t>{1, 4, 5}));  // _a bc, not _ab c
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("ab"), (std::vector<int32_t>{1, 11}));
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("A"), (std::vector<int32_t>{1, 7, 3}));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{1, 4, 5}, true), "abc");
}

// The published tokenizers, when they are at hand, through GGUF: the same ids as from their own
// files.
TEST_F(GgufTest, PublishedTokenizersGiveTheirVectors) {
  const std::string all = EXPERTFLOW_SOURCE_DIR "/../shared/tokenizers/";
  if (!std::filesystem::exists(all)) GTEST_SKIP() << all << " is not there";
  const std::pair<const char*, const char*> published[] = {
      {"qwen3", "qwen2"}, {"deepseek_v3", "deepseek-v3"}, {"olmoe", "olmo"}, {"mistral_v0.1", ""}};
  for (const auto& [name, pre] : published) {
    SCOPED_TRACE(name);
    const std::string json = *ReadFileToString(all + name + "/tokenizer.json", SIZE_MAX);
    GgufWriter gguf;
    if (*pre == '\0') {
      WriteGgufSentencePiece(json, &gguf);
    } else {
      WriteGgufTokenizer(json, pre, &gguf);
    }
    const auto text = ReadModelText(Write(gguf), "tokenizer.json", SIZE_MAX);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    const auto tokenizer = Tokenizer::Parse(*text, name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    std::ifstream vectors(all + name + "/vectors.jsonl");
    size_t seen = 0;
    for (std::string line; std::getline(vectors, line) && seen < 100; ++seen) {
      const auto row = nlohmann::json::parse(line);
      const auto found = (*tokenizer)->Encode(row["text"].get<std::string>());
      ASSERT_TRUE(found.ok());
      ASSERT_EQ(*found, row["ids"].get<std::vector<int32_t>>()) << line.substr(0, 300);
    }
    EXPECT_GT(seen, 20u);
  }
}

// --- what is wrong -------------------------------------------------------------------------------

class BadGgufTest : public GgufTest {
 protected:
  std::string Error(const GgufWriter& gguf) { return ErrorOf(gguf.Content()); }
  std::string ErrorOf(const std::string& content) {
    const std::string path = folder_ + "/model.gguf";
    std::ofstream(path, std::ios::binary) << content;
    const auto config = LoadModelConfig(path);
    if (!config.ok()) return config.status().message();
    const auto architecture = MakeArchitecture(*config);
    if (!architecture.ok()) return architecture.status().message();
    const auto checkpoint = Checkpoint::Open(path);
    const auto layout = StoreLayout::Make((*architecture)->weights(), *checkpoint, "{}");
    if (!layout.ok()) return layout.status().message();
    return PackStore(*layout, folder_ + "/model.efstore", {}).message();
  }
};

TEST_F(BadGgufTest, FIELD_65_WhatIsWrongIsNamed) {
  const GgufPair right = MixtralAsGguf(Golden("mixtral"), GgufQ8_0());
  ASSERT_EQ(Error(right.gguf), "");
  const struct {
    const char* names;
    const char* says;
    std::function<void(GgufWriter*)> make;
  } mistakes[] = {
      {"'blk.1.attn_k.weight'", "is missing",
       [](GgufWriter* g) { g->tensors().erase("blk.1.attn_k.weight"); }},
      {"'blk.2.ffn_up_exps.weight'", "is missing",
       [](GgufWriter* g) { g->tensors().erase("blk.2.ffn_up_exps.weight"); }},
      {"'blk.2.ffn_up_exps.weight'", "expected shape [8, 32, 64], found [4, 64, 64]",
       [](GgufWriter* g) {
         g->tensors()["blk.2.ffn_up_exps.weight"].shape = {4, 64, 64};
       }},
      {"'rope_freqs.weight'", "has no place",
       [](GgufWriter* g) {
         g->tensors()["rope_freqs.weight"] = {0, {4}, std::string(16, 'a')};
       }},
      {"'output.weight'", "ggml type 10 is not supported; known are F32",
       [](GgufWriter* g) { g->tensors()["output.weight"].type = 10; }},
      {"'blk.0.attn_q.weight'", "lie past the end",
       [](GgufWriter* g) {
         auto& tensor = g->tensors()["token_embd.weight"];
         g->tensors()["zzz"] = tensor;
         g->tensors()["blk.0.attn_q.weight"].shape = {1 << 20, 64};
       }},
      {"'blk.0.attn_q.weight'", "blocks of 32 (Q8_0) do not divide rows of 40",
       [](GgufWriter* g) {
         g->tensors()["blk.0.attn_q.weight"].shape = {64, 40};
       }},
      {"'blk.0.attn_norm.weight'", "NaN",
       [](GgufWriter* g) {
         g->tensors()["blk.0.attn_norm.weight"].bytes.replace(0, 4, "\xff\xff\xff\xff");
       }},
      {"llama.expert_count", "without experts",
       [](GgufWriter* g) { g->Erase("llama.expert_count"); }},
      {"llama.block_count", "is missing", [](GgufWriter* g) { g->Erase("llama.block_count"); }},
      {"llama.block_count", "expected an integer",
       [](GgufWriter* g) { g->Text("llama.block_count", "3"); }},
      {"llama.rope.new_trick", "not known",
       [](GgufWriter* g) { g->Int("llama.rope.new_trick", 1); }},
      {"llama.rope.scaling.type", "'longrope'",
       [](GgufWriter* g) { g->Text("llama.rope.scaling.type", "longrope"); }},
      {"llama.rope.dimension_count", "expected 8, as keys have",
       [](GgufWriter* g) { g->Int("llama.rope.dimension_count", 4); }},
      {"llama.expert_gating_func", "expected 1, found 2",
       [](GgufWriter* g) { g->Int("llama.expert_gating_func", 2); }},
      {"llama.attention.layer_norm_rms_epsilon", "finite",
       [](GgufWriter* g) { g->Float("llama.attention.layer_norm_rms_epsilon", NAN); }},
      {"general.architecture", "'bert' is not supported; known are qwen2moe",
       [](GgufWriter* g) { g->Text("general.architecture", "bert"); }},
      {"split.no", "is missing", [](GgufWriter* g) { g->Int("split.count", 3); }},
      {"general.alignment", "power of two", [](GgufWriter* g) { g->Int("general.alignment", 24); }},
      {"tokenizer.ggml.eos_token_id", "expected one value, found an array",
       [](GgufWriter* g) {
         g->Numbers<uint32_t>("tokenizer.ggml.eos_token_id", 4, {1, 2});
       }},
  };
  for (const auto& mistake : mistakes) {
    GgufWriter wrong = right.gguf;
    mistake.make(&wrong);
    EXPECT_THAT(Error(wrong), AllOf(HasSubstr(mistake.names), HasSubstr(mistake.says)));
  }
}

// FIELD rows 63, 64: whatever is cut off, there is a line and no crash.
TEST_F(BadGgufTest, FIELD_63_ATruncatedFileIsRefused) {
  const std::string whole = MixtralAsGguf(Golden("mixtral"), GgufQ8_0()).gguf.Content();
  for (size_t size = 0; size < whole.size(); size += size < 2000 ? 37 : 9973) {
    EXPECT_NE(ErrorOf(whole.substr(0, size)), "") << size;
  }
  EXPECT_THAT(ErrorOf(whole.substr(0, whole.size() - 64)), HasSubstr("truncated"));
  EXPECT_THAT(ErrorOf("GGUF" + std::string("\1\0\0\0", 4) + std::string(100, '\0')),
              HasSubstr("version 1 is not supported"));
  EXPECT_THAT(ErrorOf("GGUF" + std::string("\0\0\0\3", 4) + std::string(100, '\0')),
              HasSubstr("big-endian"));
  EXPECT_THAT(ErrorOf("nothing of the kind"), HasSubstr("not a GGUF file"));
}

TEST_F(BadGgufTest, AnUnknownTokenizerIsRefusedByName) {
  GgufPair pair = QwenAsGguf(Golden("qwen2_moe"), "qwen2moe", GgufPlain(0));
  const std::string json = *ReadFileToString(Golden("qwen2_moe") + "/tokenizer.json", 1 << 20);
  WriteGgufTokenizer(json, "qwen2", &pair.gguf);
  const auto error = [&](const std::function<void(GgufWriter*)>& change) {
    GgufWriter changed = pair.gguf;
    change(&changed);
    const auto text = ReadModelText(Write(changed), "tokenizer.json", SIZE_MAX);
    return text.ok() ? Tokenizer::Parse(*text, "gguf").status().message() : text.status().message();
  };
  EXPECT_EQ(error([](GgufWriter*) {}), "");
  EXPECT_THAT(error([](GgufWriter* g) { g->Text("tokenizer.ggml.pre", "mystery"); }),
              AllOf(HasSubstr("tokenizer.ggml.pre"), HasSubstr("'mystery'"), HasSubstr("qwen2")));
  EXPECT_THAT(error([](GgufWriter* g) { g->Text("tokenizer.ggml.model", "t5"); }),
              AllOf(HasSubstr("tokenizer.ggml.model"), HasSubstr("'t5'")));
  EXPECT_THAT(error([](GgufWriter* g) { g->Erase("tokenizer.ggml.merges"); }),
              HasSubstr("tokenizer.ggml.merges: is missing"));
  EXPECT_THAT(error([](GgufWriter* g) {
                g->Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1});
              }),
              HasSubstr("tokenizer.ggml.token_type: expected 299, found 2"));
  EXPECT_THAT(error([](GgufWriter* g) {
                g->Bool("tokenizer.ggml.add_bos_token", true);
                g->Int("tokenizer.ggml.bos_token_id", 5000);
              }),
              HasSubstr("tokenizer.ggml.bos_token_id"));
  EXPECT_THAT(error([](GgufWriter* g) { g->Text("tokenizer.ggml.model", "llama"); }),
              HasSubstr("tokenizer.ggml.scores"));
}

}  // namespace
}  // namespace expertflow::testing

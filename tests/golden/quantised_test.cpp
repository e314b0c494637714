// Quantised checkpoints against the same values written as float32: the stores hold equal values,
// and the engine computes the same bits; and what is wrong in one is refused by a line that names
// the tensor.
#include <gmock/gmock.h>

#include "expert_store/synth.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/quantised_checkpoint.h"
#include "tests/golden/quantised_values.h"

namespace expertflow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Golden(const std::string& name) {
  return EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name;
}

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "quantised-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Element i of a tensor.
float ValueAt(const uint8_t* data, DType dtype, uint64_t elements, uint64_t i) {
  if (IsQuantised(dtype)) return QuantisedValue(data, dtype, elements, i);
  float value = 0;
  uint16_t bits = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&value, data + 4 * i, sizeof(value));
    return value;
  }
  std::memcpy(&bits, data + 2 * i, sizeof(bits));
  return dtype == DType::kF16 ? FloatFromHalf(bits) : FloatFromBFloat16(bits);
}

std::vector<float> ValuesOf(const DenseTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    values[i] = ValueAt(tensor.data, tensor.dtype, elements, i);
  }
  return values;
}

// A matrix of an expert.
struct Matrix {
  DType dtype;
  uint64_t offset;
};
std::array<Matrix, 3> MatricesOf(const ExpertBlock& block) {
  return {Matrix{block.types.gate, block.gate_offset}, Matrix{block.types.up, block.up_offset},
          Matrix{block.types.down, block.down_offset}};
}

std::vector<float> ValuesOf(const ExpertBlock& block, const Matrix& of) {
  const auto elements = static_cast<uint64_t>(block.hidden * block.intermediate);
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    values[i] = ValueAt(block.data + of.offset, of.dtype, elements, i);
  }
  return values;
}

void ExpectEqualStores(const StoreView& found, const StoreView& expected) {
  ASSERT_EQ(found.dense().size(), expected.dense().size());
  for (const DenseTensor& tensor : expected.dense()) {
    const DenseTensor* other = found.FindDense(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_TRUE(other->dtype == tensor.dtype || IsQuantised(other->dtype)) << tensor.name;
    EXPECT_TRUE(ValuesOf(*other) == ValuesOf(tensor)) << tensor.name;
  }
  ASSERT_EQ(found.expert_count(), expected.expert_count());
  for (int32_t layer = 0; layer < expected.layers(); ++layer) {
    for (int32_t expert = 0; expert < expected.ExpertsIn(LayerId(layer)); ++expert) {
      const ExpertKey key{LayerId(layer), ExpertId(expert)};
      const ExpertBlock a = found.Expert(key), b = expected.Expert(key);
      for (size_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(ValuesOf(a, MatricesOf(a)[i]) == ValuesOf(b, MatricesOf(b)[i]))
            << "layer " << layer << " expert " << expert;
      }
    }
  }
}

StepOutput Generate(const GoldenModel& model, const EngineSetup& setup) {
  GoldenEngine golden(model, setup);
  StartSequence start;
  start.sequence = {1};
  for (int32_t i = 0; i < 40; ++i) start.tokens.push_back((i * 37 + 11) % 256);
  start.prompt_tokens = static_cast<uint32_t>(start.tokens.size());
  start.max_new_tokens = 8;
  start.capture_logits = true;
  EXPECT_TRUE(golden.engine().Start(start).ok());
  return golden.RunToEnd();
}

// Experts' matrices are kept as `dtypes`.
void ExpectSameModel(const std::string& folder, const std::string& dtypes) {
  const GoldenModel quantised(folder + "/quantised");
  const GoldenModel plain(folder + "/plain");
  EXPECT_EQ(DTypeNames(quantised.store().expert_dtypes()), dtypes);
  ExpectEqualStores(quantised.store(), plain.store());
  const StepOutput found =
      Generate(quantised, {.in_place = false, .resident_percent = 30, .prefill_tokens = 13});
  const StepOutput expected = Generate(plain, {});
  ASSERT_EQ(found.captured.size(), expected.captured.size());
  for (size_t i = 0; i < found.captured.size(); ++i) {
    EXPECT_EQ(found.captured[i].logits, expected.captured[i].logits);
  }
}

struct IntegerCase {
  const char* checkpoint;
  const char* config;
  IntegerForm form;
  const char* kept = "F32";
};

TEST(QuantisedTest, IntegersWithGroupsAreTheValuesThatTheyStandFor) {
  const IntegerCase cases[] = {
      {"qwen2_moe_gqa",
       R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": false,
        "sym": true, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate"]],
        "exllama_config": {"version": 1}, "dataset": null})",
       {.symmetric = true}},
      {"qwen2_moe_gqa",
       R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": true,
        "sym": false, "checkpoint_format": "gptq"})",
       {.act_order = true}},
      {"mixtral",
       R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": false,
        "checkpoint_format": "gptq_v2"})",
       {.group_size = -1, .zero_offset = 0},
       "UINT4"},
      {"mixtral",
       R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true})",
       {.group_size = 32, .symmetric = true},  // with an index, but all in order
       "INT4"},
      {"mixtral",
       R"({"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": false})",
       {.group_size = 32, .bits = 8, .symmetric = true},
       "INT8"},
      {"mixtral",
       R"({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": false})",
       {.group_size = 32, .bits = 8}},
      {"qwen2_moe_gqa",
       R"({"quant_method": "gptq", "bits": 8, "group_size": 24, "desc_act": true})",
       {.group_size = 24, .bits = 8, .act_order = true},
       "F32, BF16"},
      {"mixtral",
       R"({"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": true,
        "version": "gemm", "modules_to_not_convert": null})",
       {.group_size = 16, .zero_offset = 0, .awq = true}},
      {"mixtral",
       R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"})",
       {.group_size = 32, .zero_offset = 0, .awq = true},
       "UINT4"},
  };
  for (const IntegerCase& test : cases) {
    SCOPED_TRACE(test.config);
    const Folder folder;
    WriteQuantisedPair(Golden(test.checkpoint), folder.path(), Json::parse(test.config),
                       [&](const MatrixToQuantise& matrix) {
                         // 24 does not divide 64 inputs: such layers stay as they are.
                         if (test.form.group_size == 24 && matrix.cols % 24 != 0) {
                           return QuantisedMatrix();
                         }
                         return QuantiseIntegers(matrix, test.form);
                       });
    ExpectSameModel(folder.path(), test.kept);
  }
}

// Without g_idx the groups' inputs lie together; some writers add biases of zero.
TEST(QuantisedTest, GptqMayLeaveOutTheIndexAndAddBiasesOfZero) {
  const Folder folder;
  WriteQuantisedPair(
      Golden("mixtral"), folder.path(),
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}, {"desc_act", false}},
      [](const MatrixToQuantise& matrix) {
        QuantisedMatrix made = QuantiseIntegers(matrix, {.group_size = 16});
        made.parts.erase(".g_idx");
        made.parts[".bias"] =
            MakeTestTensor(ElementType::kF16, {matrix.rows}, std::vector<uint16_t>(matrix.rows));
        return made;
      });
  ExpectSameModel(folder.path(), "F32");
}

// Some matrices have zero points: each is kept in its own type.
TEST(QuantisedTest, MatricesOfSeveralKindsAreKeptEachInItsOwn) {
  const Folder folder;
  int matrices = 0;
  WriteQuantisedPair(Golden("mixtral"), folder.path(),
                     {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}},
                     [&](const MatrixToQuantise& matrix) {
                       const bool symmetric = ++matrices % 5 != 0;
                       return QuantiseIntegers(matrix, {.group_size = 32, .symmetric = symmetric});
                     });
  ExpectSameModel(folder.path(), "INT4, UINT4");
}

TEST(QuantisedTest, Fp8WithBlocksOrOneScaleIsTheValuesThatItStandsFor) {
  const struct {
    const char* checkpoint;
    const char* config;
    int64_t rows, cols;
    const char* suffix;
    const char* kept = "F32";
    bool all = false;
  } cases[] = {
      {"mixtral", R"({"quant_method": "fp8", "weight_block_size": [16, 32]})", 16, 32, "_scale_inv",
       "F8_E4M3", true},
      {"mixtral", R"({"quant_method": "fp8"})", 0, 0, "_scale", "F8_E4M3", true},
      {"deepseek_v3", R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [16, 20]})",
       16, 20, "_scale_inv", "F32, BF16"},
      {"qwen3_moe", R"({"quant_method": "fp8", "weight_block_size": [128, 128],
        "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]})",
       128, 128, "_scale_inv", "F32, BF16, F8_E4M3"},
      {"mixtral", R"({"quant_method": "fp8", "activation_scheme": "static",
        "ignored_layers": ["lm_head"]})",
       0, 0, "_scale", "BF16, F8_E4M3"},
      {"glm4_moe", R"({"quant_method": "fp8", "weight_block_size": null})", 0, 0, "_scale_inv",
       "F32, BF16"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.config);
    const Folder folder;
    int matrices = 0;
    WriteQuantisedPair(Golden(test.checkpoint), folder.path(), Json::parse(test.config),
                       [&](const MatrixToQuantise& matrix) {
                         // Some layers are left out, experts among them.
                         if (!test.all && ++matrices % 10 == 0) return QuantisedMatrix();
                         return QuantiseFp8(matrix, test.rows, test.cols, test.suffix);
                       });
    ExpectSameModel(folder.path(), test.kept);
  }
}

// The values that the format's specification lists.
TEST(QuantisedTest, Fp8IsE4m3) {
  const Folder folder;
  const std::vector<uint8_t> codes = {0x00, 0x01, 0x07, 0x08, 0x38, 0x3c, 0xc4, 0x7e, 0xfe, 0x80};
  const std::vector<float> expected = {0,   0x1p-9f, 0x1.cp-7f, 0x1p-6f, 1,
                                       1.5, -3,      448,       -448,    -0.0f};
  TestTensors tensors;
  tensors["a.weight"] = MakeTestTensor(ElementType::kF8E4M3, {1, 10}, codes);
  tensors["a.weight_scale_inv"] =
      MakeTestTensor(ElementType::kF8E8M0, {1, 1}, std::vector<uint8_t>{128});
  WriteTestCheckpoint(folder.path(), tensors, Json::object());
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  WeightPlan plan;
  plan.dense = {{"a.weight", {1, 10}}};
  plan.quantisation = {.method = Quantisation::Method::kFp8, .block_rows = 4, .block_cols = 16};
  const auto layout = StoreLayout::Make(plan, *checkpoint, "{}");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  ASSERT_TRUE(PackStore(*layout, folder.path() + "/model.efstore", {}).ok());
  const auto view = StoreView::OpenFile(folder.path() + "/model.efstore");
  ASSERT_TRUE(view.ok());
  const DenseTensor& found = view->dense().front();
  ASSERT_EQ(found.dtype, DType::kBF16);  // scales are powers of two
  for (size_t i = 0; i < codes.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, found.data + 2 * i, 2);
    EXPECT_EQ(FloatFromBFloat16(bits), 2 * expected[i]) << i;
  }
}

// --- MXFP4 -------------------------------------------------------------------------------------

struct FusedModel {
  TestTensors quantised;
  TestTensors plain;
  Json config;
};

// gpt-oss with experts of random codes: rows of outputs in MXFP4, rows of inputs in the plain form.
FusedModel MakeFusedModel() {
  constexpr int64_t kWide = 32, kHidden = 64;
  FusedModel model;
  model.config = Json::parse(*ReadFileToString(Golden("gpt_oss") + "/config.json", 1 << 20));
  model.config["intermediate_size"] = kWide;
  const auto experts = model.config["num_local_experts"].get<int64_t>();
  model.plain = ReadTestTensors(Golden("gpt_oss"));
  TestNumbers numbers(5);
  const auto add = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    static constexpr float kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    std::vector<uint8_t> blocks(experts * outputs * inputs / 2);
    std::vector<uint8_t> scales(experts * outputs * inputs / 32);
    std::vector<uint16_t> plain(experts * outputs * inputs);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(120 + numbers.Below(6));
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t i = 0; i < inputs; ++i) {
          const int64_t at = (e * outputs + o) * inputs + i;
          const uint32_t code = numbers.Below(16);
          blocks[at / 2] |= static_cast<uint8_t>(code << (at % 2 * 4));
          const double value = kValues[code % 8] * std::pow(2.0, scales[at / 32] - 127);
          const auto bits = std::bit_cast<uint32_t>(static_cast<float>(code < 8 ? value : -value));
          plain[(e * inputs + i) * outputs + o] = static_cast<uint16_t>(bits >> 16);
        }
      }
    }
    model.plain[name] = MakeTestTensor(ElementType::kBF16, {experts, inputs, outputs}, plain);
    model.quantised[name + "_blocks"] =
        MakeTestTensor(ElementType::kU8, {experts, outputs, inputs / 32, 16}, blocks);
    model.quantised[name + "_scales"] =
        MakeTestTensor(ElementType::kU8, {experts, outputs, inputs / 32}, scales);
  };
  for (int layer = 0; layer < model.config["num_hidden_layers"]; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    add(prefix + "gate_up_proj", 2 * kWide, kHidden);
    add(prefix + "down_proj", kHidden, kWide);
    std::vector<uint16_t> bias;
    for (int64_t i = 0; i < experts * 2 * kWide; ++i) {
      bias.push_back(static_cast<uint16_t>(0x3d00 + numbers.Below(256)));
    }
    model.plain[prefix + "gate_up_proj_bias"] =
        MakeTestTensor(ElementType::kBF16, {experts, 2 * kWide}, bias);
  }
  for (const auto& [name, tensor] : model.plain) {
    if (!model.quantised.contains(name + "_blocks")) model.quantised[name] = tensor;
  }
  return model;
}

const Json kMxfp4 = {{"quant_method", "mxfp4"},
                     {"modules_to_not_convert", {"model.layers.*.self_attn", "lm_head"}}};

TEST(QuantisedTest, Mxfp4IsTheValuesThatItStandsFor) {
  const Folder folder;
  FusedModel model = MakeFusedModel();
  WriteTestCheckpoint(folder.path() + "/plain", model.plain, model.config);
  model.config["quantization_config"] = kMxfp4;
  WriteTestCheckpoint(folder.path() + "/quantised", model.quantised, model.config);
  ExpectSameModel(folder.path(), "MXFP4");
}

// --- stores that are quantised -------------------------------------------------------------------

// Mean over the positions, in nats.
double MeanDivergence(const StepOutput& from, const StepOutput& to) {
  double sum = 0;
  for (size_t i = 0; i < from.captured.size(); ++i) {
    sum += Divergence(from.captured[i].logits, to.captured[i].logits);
  }
  return sum / static_cast<double>(from.captured.size());
}

// The bundled model with quantised experts, and with experts of the values that those stand for.
// The model of a store with these settings computes what its values as float32 give, bit by bit.
// Returns what it computed.
StepOutput ExpectComputesWithItsValues(const std::string& source, const StoreSettings& settings) {
  const GoldenModel quantised(source, "", settings);
  TestTensors tensors = ReadTestTensors(source);
  for (const ExpertSpec& spec : quantised.architecture().weights().experts) {
    const ExpertBlock block = quantised.store().Expert(spec.key);
    const TensorSpec* const parts[] = {&spec.gate, &spec.up, &spec.down};
    for (size_t i = 0; i < 3; ++i) {
      tensors[parts[i]->name] =
          MakeTestTensor(ElementType::kF32, parts[i]->shape, ValuesOf(block, MatricesOf(block)[i]));
    }
  }
  for (const DenseTensor& tensor : quantised.store().dense()) {
    if (!IsQuantised(tensor.dtype)) continue;
    tensors[tensor.name] = MakeTestTensor(ElementType::kF32, tensor.shape, ValuesOf(tensor));
  }
  const Folder folder;
  WriteTestCheckpoint(folder.path(), tensors,
                      Json::parse(*ReadFileToString(source + "/config.json", 1 << 20)));
  const GoldenModel floats(folder.path());
  StepOutput found = Generate(quantised, {.in_place = false, .resident_percent = 30});
  const StepOutput expected = Generate(floats, {.prefill_tokens = 7});
  EXPECT_EQ(found.captured.size(), expected.captured.size());
  for (size_t i = 0; i < std::min(found.captured.size(), expected.captured.size()); ++i) {
    EXPECT_EQ(found.captured[i].logits, expected.captured[i].logits) << i;
  }
  return found;
}

TEST(QuantisedTest, QuantisedStoresComputeWithTheValuesThatTheyHold) {
  const std::string bundled = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe";
  const StepOutput before = Generate(GoldenModel(bundled), {});
  const std::pair<DType, double> types[] = {{DType::kInt8, 1e-3},
                                            {DType::kInt4, 0.1},
                                            {DType::kUInt4, 0.1},
                                            {DType::kMxfp4, 0.2},
                                            {DType::kFp8, 1e-2}};
  for (const auto& [dtype, divergence_max] : types) {
    SCOPED_TRACE(DTypeName(dtype));
    const StepOutput experts = ExpectComputesWithItsValues(bundled, {.experts = dtype});
    const StepOutput all = ExpectComputesWithItsValues(bundled, {.experts = dtype, .dense = dtype});
    const double divergence = MeanDivergence(before, experts);
    EXPECT_LT(divergence, divergence_max);
    const double divergence_all = MeanDivergence(before, all);
    EXPECT_GT(divergence_all, divergence);
    EXPECT_LT(divergence_all, 20 * divergence_max);
    std::printf("%s: mean KL divergence %.2g nats, with all matrices %.2g\n",
                std::string(DTypeName(dtype)).c_str(), divergence, divergence_all);
  }
}

// Experts of two types, and blocks of two sizes in the cache.
TEST(QuantisedTest, ExpertsMayHaveTypesOfTheirOwn) {
  StoreSettings settings;
  for (size_t i = 0; i < 12 * 48; ++i) {
    settings.each_expert.push_back(i % 5 == 0 ? DType::kInt8 : DType::kMxfp4);
  }
  ExpectComputesWithItsValues(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", settings);
}

// Parts of a projection's rows, and products with it transposed.
TEST(QuantisedTest, LatentProjectionsMayBeQuantised) {
  const Folder folder;
  Json config = Json::parse(*ReadFileToString(Golden("deepseek_v3") + "/config.json", 1 << 20));
  for (const auto& [key, value] :
       {std::pair("intermediate_size", 96), std::pair("moe_intermediate_size", 32),
        std::pair("kv_lora_rank", 32), std::pair("q_lora_rank", 64)}) {
    config[key] = value;
  }
  const std::string model = folder.path() + "/model";
  const auto json = JsonConfig::Parse(config.dump(), "config.json");
  const auto architecture = MakeArchitecture(*json);
  ASSERT_TRUE(architecture.ok()) << architecture.status().ToString();
  ASSERT_TRUE(
      WriteSyntheticCheckpoint((*architecture)->weights(), config.dump(), model, {.seed = 3}).ok());
  for (const DType dtype : {DType::kInt8, DType::kUInt4, DType::kMxfp4}) {
    SCOPED_TRACE(DTypeName(dtype));
    ExpectComputesWithItsValues(model, {.experts = dtype, .dense = dtype});
  }
}

// What a wider type holds is not rounded again.
TEST(QuantisedTest, StoresKeepWhatIsInStepsAlready) {
  const struct {
    DType dtype;
    Json config;
    IntegerForm form;
  } cases[] = {{DType::kUInt4,
                {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}},
                {.group_size = 32, .symmetric = true}},
               {DType::kInt8,
                {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}},
                {.group_size = 32, .zero_offset = 0, .awq = true}}};
  for (const auto& test : cases) {
    SCOPED_TRACE(DTypeName(test.dtype));
    const Folder folder;
    WriteQuantisedPair(
        Golden("mixtral"), folder.path(), test.config,
        [&](const MatrixToQuantise& matrix) { return QuantiseIntegers(matrix, test.form); });
    const GoldenModel packed(folder.path() + "/quantised", "", {.experts = test.dtype});
    const GoldenModel plain(folder.path() + "/plain");
    EXPECT_EQ(DTypeNames(packed.store().expert_dtypes()), DTypeName(test.dtype));
    const StepOutput found = Generate(packed, {}), expected = Generate(plain, {});
    ASSERT_EQ(found.captured.size(), expected.captured.size());
    for (size_t i = 0; i < found.captured.size(); ++i) {
      ASSERT_EQ(found.captured[i].logits, expected.captured[i].logits) << i;
    }
  }
}

// --- what is wrong -----------------------------------------------------------------------------

// The error of packing these tensors under this config.
std::string PackError(const TestTensors& tensors, const Json& config) {
  const Folder folder;
  WriteTestCheckpoint(folder.path(), tensors, config);
  const auto read = JsonConfig::Parse(config.dump(), "config.json");
  const auto architecture = MakeArchitecture(*read);
  if (!architecture.ok()) return architecture.status().message();
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return checkpoint.status().message();
  const auto layout = StoreLayout::Make((*architecture)->weights(), *checkpoint, "{}");
  if (!layout.ok()) return layout.status().message();
  return PackStore(*layout, folder.path() + "/model.efstore", {}).message();
}

struct Published {
  TestTensors tensors;
  Json config;
};

Published Quantised(const std::string& checkpoint, const Json& quantization_config,
                    const Quantiser& quantise) {
  const Folder folder;
  WriteQuantisedPair(Golden(checkpoint), folder.path(), quantization_config, quantise);
  return {ReadTestTensors(folder.path() + "/quantised"),
          Json::parse(*ReadFileToString(folder.path() + "/quantised/config.json", 1 << 20))};
}

struct Mistake {
  const char* names;  // both are in the line
  const char* says;
  std::function<void(Published*)> make;
};

void ExpectRefused(const Published& right, const std::vector<Mistake>& mistakes) {
  ASSERT_EQ(PackError(right.tensors, right.config), "");
  for (const Mistake& mistake : mistakes) {
    Published wrong = right;
    mistake.make(&wrong);
    EXPECT_THAT(PackError(wrong.tensors, wrong.config),
                AllOf(HasSubstr(mistake.names), HasSubstr(mistake.says)));
  }
}

const std::string kExpert = "model.layers.1.mlp.experts.3.up_proj";

TEST(QuantisedTest, FIELD_5_WrongGptqIsRefusedByTheTensorsName) {
  const Published right = Quantised(
      "qwen2_moe_gqa",
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}, {"desc_act", true}},
      [](const MatrixToQuantise& matrix) { return QuantiseIntegers(matrix, {.act_order = true}); });
  const auto config = [](const char* key, const Json& value) {
    return [=](Published* wrong) { wrong->config["quantization_config"][key] = value; };
  };
  const auto erase = [](const std::string& name) {
    return [=](Published* wrong) { ASSERT_EQ(wrong->tensors.erase(name), 1u) << name; };
  };
  const auto replace = [](const std::string& name, const TestTensor& tensor) {
    return [=](Published* wrong) { wrong->tensors.at(name) = tensor; };
  };
  const TestTensor& index = right.tensors.at(kExpert + ".g_idx");
  std::vector<int32_t> beyond = ValuesOf<int32_t>(index);
  beyond[5] = 8;
  std::vector<int32_t> negative = beyond;
  negative[5] = -1;
  TestTensor nan = right.tensors.at(kExpert + ".scales");
  nan.bytes[7] = 0x7e;
  TestTensor fifteen = right.tensors.at(kExpert + ".qzeros");
  fifteen.bytes[2] = 0xf3;
  const TestTensor bias = MakeTestTensor(ElementType::kF16, {24}, std::vector<uint16_t>(24, 1));
  ExpectRefused(
      right,
      {{"up_proj.scales' is missing", "(gptq)", erase(kExpert + ".scales")},
       {"up_proj.qzeros' is missing", "(gptq)", erase(kExpert + ".qzeros")},
       {"up_proj.weight' of shape [24, 64] is missing", "up_proj.qweight'",
        erase(kExpert + ".qweight")},
       {"up_proj.qweight'", "g_idx is missing", erase(kExpert + ".g_idx")},
       {".qweight'", "groups of 7 do not divide", config("group_size", 7)},
       {".qzeros'", "expected shape [4, ", config("group_size", 16)},
       {"quantization_config.group_size", "positive", config("group_size", 0)},
       {"quantization_config.bits", "3 is not supported", config("bits", 3)},
       {".qweight'", "expected shape [16, ", config("bits", 8)},
       {"quantization_config.checkpoint_format", "marlin", config("checkpoint_format", "marlin")},
       {"quantization_config.dynamic", "not supported",
        config("dynamic", {{"-:lm_head", Json::object()}})},
       {"quantization_config.is_marlin_format", "true", config("is_marlin_format", true)},
       {"quantization_config.rotation", "", config("rotation", "hadamard")},
       {"quantization_config.quant_method", "bitsandbytes", config("quant_method", "bitsandbytes")},
       {"quantization_config.modules_to_not_convert", "texts",
        config("modules_to_not_convert", {1})},
       {"up_proj.g_idx'", "input 5 is of group 8, but there are 8",
        replace(kExpert + ".g_idx", MakeTestTensor(index.type, index.shape, beyond))},
       {"up_proj.g_idx'", "input 5 is of group -1",
        replace(kExpert + ".g_idx", MakeTestTensor(index.type, index.shape, negative))},
       {"up_proj.g_idx'", "expected shape [64]",
        replace(kExpert + ".g_idx",
                right.tensors.at("model.layers.0.mlp.experts.0.down_proj.g_idx"))},
       {"up_proj.scales'", "expected F16 or BF16 or F32, found I32",
        replace(kExpert + ".scales", right.tensors.at(kExpert + ".qzeros"))},
       {"up_proj.scales'", "NaN", replace(kExpert + ".scales", nan)},
       {"up_proj.qzeros'", "published codes disagree", replace(kExpert + ".qzeros", fifteen)},
       {"up_proj.weight'", "one of them is too much",
        [](Published* wrong) {
          wrong->tensors[kExpert + ".weight"] =
              MakeTestTensor(ElementType::kBF16, {24, 64}, std::vector<uint16_t>(24 * 64));
        }},
       {"up_proj.bias'", "not zero",
        [&](Published* wrong) { wrong->tensors[kExpert + ".bias"] = bias; }},
       {"up_proj.other'", "has no place",
        [&](Published* wrong) { wrong->tensors[kExpert + ".other"] = bias; }},
       {"q_proj.weight' of shape [64, 64] is missing", "",
        [](Published* wrong) { wrong->config.erase("quantization_config"); }}});
}

TEST(QuantisedTest, FIELD_5_WrongAwqIsRefusedByTheTensorsName) {
  const Published right = Quantised(
      "mixtral", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 16}},
      [](const MatrixToQuantise& matrix) {
        return QuantiseIntegers(matrix, {.group_size = 16, .zero_offset = 0, .awq = true});
      });
  const auto config = [](const char* key, const Json& value) {
    return [=](Published* wrong) { wrong->config["quantization_config"][key] = value; };
  };
  const std::string name = "model.layers.0.block_sparse_moe.experts.2.w1";
  ExpectRefused(right, {{"quantization_config.version", "gemv", config("version", "gemv")},
                        {"quantization_config.zero_point", "false", config("zero_point", false)},
                        {"quantization_config.bits", "8 is not supported", config("bits", 8)},
                        {"quantization_config.backend", "llm-awq", config("backend", "llm-awq")},
                        {".qweight'", "groups of 48 do not divide", config("group_size", 48)},
                        {".qweight'", "expected shape", config("quant_method", "gptq")},
                        {"w1.qzeros' is missing", "(awq)",
                         [&](Published* wrong) { wrong->tensors.erase(name + ".qzeros"); }},
                        {"w1.qweight'", "expected I32", [&](Published* wrong) {
                           wrong->tensors.at(name + ".qweight").type = ElementType::kF32;
                         }}});
}

TEST(QuantisedTest, FIELD_5_WrongFp8IsRefusedByTheTensorsName) {
  const Published right = Quantised(
      "qwen3_moe", {{"quant_method", "fp8"}, {"weight_block_size", {16, 32}}},
      [](const MatrixToQuantise& matrix) { return QuantiseFp8(matrix, 16, 32, "_scale_inv"); });
  const auto config = [](const char* key, const Json& value) {
    return [=](Published* wrong) { wrong->config["quantization_config"][key] = value; };
  };
  const std::string weight = kExpert + ".weight";
  ExpectRefused(
      right,
      {{"up_proj.weight_scale_inv' is missing", "(fp8)",
        [&](Published* wrong) { wrong->tensors.erase(weight + "_scale_inv"); }},
       {"_scale_inv'", "blocks of 16 x 64", config("weight_block_size", {16, 64})},
       {"_scale_inv'", "expected shape [1]", config("weight_block_size", nullptr)},
       {"quantization_config.weight_block_size", "rows and columns",
        config("weight_block_size", {16})},
       {"quantization_config.weight_block_size", "[1, ", config("weight_block_size", {0, 128})},
       {"quantization_config.fmt", "e5m2", config("fmt", "e5m2")},
       {"quantization_config.kv_cache_scheme", "not supported",
        config("kv_cache_scheme", {{"type", "float"}})},
       {"up_proj.weight'", "expected F8_E4M3, found F8_E5M2",
        [&](Published* wrong) { wrong->tensors.at(weight).type = ElementType::kF8E5M2; }},
       {"up_proj.weight'", "NaN",
        [&](Published* wrong) { wrong->tensors.at(weight).bytes[9] = 0x7f; }},
       {"up_proj.weight_scale_inv'", "infinity",
        [&](Published* wrong) {
          wrong->tensors.at(weight + "_scale_inv").bytes = {0, 0, 0x80, 0x7f, 0, 0, 0x80, 0x7f,
                                                            0, 0, 0x80, 0x7f, 0, 0, 0x80, 0x7f};
        }},
       {"up_proj.weight'", "expected shape [24, 64], found [64, 24]",
        [&](Published* wrong) {
          wrong->tensors.at(weight).shape = {64, 24};
        }},
       {"up_proj.weight_scale'", "one of them is too much",
        [&](Published* wrong) {
          wrong->tensors[weight + "_scale"] = wrong->tensors.at(weight + "_scale_inv");
        }},
       {"F8_E4M3", "is not supported",
        [](Published* wrong) { wrong->config.erase("quantization_config"); }}});
}

TEST(QuantisedTest, FIELD_5_WrongMxfp4IsRefusedByTheTensorsName) {
  const FusedModel model = MakeFusedModel();
  Published right{model.quantised, model.config};
  right.config["quantization_config"] = kMxfp4;
  const std::string name = "model.layers.2.mlp.experts.down_proj";
  ExpectRefused(right,
                {{"down_proj_scales' is missing", "(mxfp4)",
                  [&](Published* wrong) { wrong->tensors.erase(name + "_scales"); }},
                 {"down_proj_blocks'", "is missing",
                  [&](Published* wrong) { wrong->tensors.erase(name + "_blocks"); }},
                 {"layers.0.mlp.experts.down_proj_blocks'", "blocks of 32 do not divide rows of 40",
                  [&](Published* wrong) {
                    wrong->config["intermediate_size"] = 40;
                    const std::string first = "model.layers.0.mlp.experts.gate_up_proj";
                    const auto resize = [&](const char* suffix, std::vector<int64_t> shape) {
                      TestTensor& tensor = wrong->tensors.at(first + suffix);
                      shape.insert(shape.begin(), tensor.shape[0]);
                      tensor.shape = shape;
                      tensor.bytes.resize(tensor.bytes.size() / 64 * 80);
                    };
                    resize("_blocks", {80, 2, 16});
                    resize("_scales", {80, 2});
                    resize("_bias", {80});
                  }},
                 {"down_proj_scales'", "infinity",
                  [&](Published* wrong) { wrong->tensors.at(name + "_scales").bytes[4] = 254; }},
                 {"down_proj_scales'", "NaN",
                  [&](Published* wrong) { wrong->tensors.at(name + "_scales").bytes[4] = 255; }},
                 {"down_proj'", "expected 'model.layers.2.mlp.experts.down_proj_blocks'",
                  [&](Published* wrong) {
                    wrong->tensors.erase(name + "_blocks");
                    wrong->tensors.erase(name + "_scales");
                    wrong->tensors[name] = model.plain.at(name);
                  }},
                 {"quantization_config", "'gptq' is not supported for GptOssForCausalLM",
                  [](Published* wrong) {
                    wrong->config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
                  }}});
  Json other = Json::parse(*ReadFileToString(Golden("mixtral") + "/config.json", 1 << 20));
  other["quantization_config"] = kMxfp4;
  EXPECT_THAT(PackError({}, other), HasSubstr("'mxfp4' is not supported for MixtralForCausalLM"));
}

}  // namespace
}  // namespace expertflow::testing

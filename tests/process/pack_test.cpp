// pack's options that go by a recorded routing, and those that quantise everything: the packed
// models run, whatever the cache, and what cannot be is named.
#include <nlohmann/json.hpp>

#include "tests/process/folder_test.h"
#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

class PackTest : public FolderTest {
 protected:
  std::string Run(const std::string& model, const std::vector<std::string>& extra) {
    return Output({"run", "--model", model, "--prompt", "The river", "--max-tokens", "32"}, extra);
  }
  // Its report. Leaves the model in folder_/<name>.
  nlohmann::json Pack(const std::string& name, const std::vector<std::string>& extra) {
    return nlohmann::json::parse(
        Output({"pack", kModel, "-o", folder_ + "/" + name, "--json", "-"}, extra));
  }
  std::string Refused(std::vector<std::string> extra) {
    std::vector<std::string> arguments = {"pack", kModel, "-o", folder_ + "/refused"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 2);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/refused"));
    return program.err();
  }
  std::string RecordTrace() {
    const std::string trace = folder_ + "/trace.eft";
    Run(kModel, {"--record", trace});
    return trace;
  }
};

TEST_F(PackTest, PopularExpertsGetATypeOfTheirOwn) {
  const std::string trace = RecordTrace();
  const auto report = Pack("mixed", {"--quant", "int4", "--quant-popular", "25%:int8", "--trace",
                                     trace})["quantisation"];
  EXPECT_EQ(report["expert_dtype"], "INT8, INT4");
  EXPECT_EQ(report["popular"]["dtype"], "INT8");
  EXPECT_EQ(report["popular"]["experts"], 12 * 48 / 4);
  EXPECT_GT(report["popular"]["share_of_uses"].get<double>(), 0.4);
  const auto int4 = Pack("int4", {"--quant", "int4"})["quantisation"];
  const auto int8 = Pack("int8", {"--quant", "int8"})["quantisation"];
  const auto bytes = [](const nlohmann::json& json) { return json["expert_bytes"].get<int64_t>(); };
  EXPECT_EQ(4 * bytes(report), 3 * bytes(int4) + bytes(int8));
  Output({"inspect", folder_ + "/mixed", "--verify"});
  const std::string text = Run(folder_ + "/mixed", {"--workers", "1"});
  EXPECT_EQ(Run(folder_ + "/mixed", {"--workers", "2", "--expert-memory", "30%"}), text);
  // No slots, one of each size, a part, all.
  for (const char* memory : {"0", "36864", "10%", "100%"}) {
    for (const char* prefetch : {"on", "off"}) {
      EXPECT_EQ(Run(folder_ + "/mixed", {"--workers", "1", "--expert-memory", memory, "--prefetch",
                                         prefetch, "--link", "4GB/s"}),
                text)
          << memory << " " << prefetch;
    }
  }
}

TEST_F(PackTest, ExpertsOfTwoTypesHaveSlotsOfTwoSizes) {
  Pack("mixed", {"--quant", "int4", "--quant-popular", "25%:int8", "--trace", RecordTrace()});
  const auto plan = [&](const std::vector<std::string>& extra) {
    return nlohmann::json::parse(
        Output({"inspect", folder_ + "/mixed", "--json", "-"}, extra))["memory_plan"];
  };
  const auto half = plan({"--expert-memory", "50%"});
  EXPECT_EQ(half["slot_classes"],
            nlohmann::json::parse(R"([{"slot_bytes": 24576, "experts": 144, "slots": 72},
                                      {"slot_bytes": 12288, "experts": 432, "slots": 216}])"));
  EXPECT_EQ(half["expert_bytes"], 72 * 24576 + 216 * 12288);
  EXPECT_EQ(half["expert_slots"], 288);
  // A device of this size is filled as far as a slot of each size fits.
  const auto fixed = plan({"--expert-memory", "0"})["total_bytes"].get<int64_t>();
  const auto fits = [&](int64_t bytes) {
    return plan({"--device-budget", std::to_string(fixed + bytes)})["expert_slots"];
  };
  EXPECT_EQ(fits(36863), 0);
  EXPECT_EQ(fits(36864), 2);
  EXPECT_EQ(fits(3 * 12288 + 2 * 12288), 4);
}

TEST_F(PackTest, ATraceSaysWhatEachExpertTakes) {
  const std::string mixed = folder_ + "/mixed", trace = folder_ + "/mixed.eft";
  Pack("mixed", {"--quant", "int4", "--quant-popular", "25%:int8", "--trace", RecordTrace()});
  const std::string report = folder_ + "/run.json";
  Run(mixed, {"--workers", "1", "--prompt", "When", "--record", trace, "--expert-memory", "30%",
              "--prefetch", "off", "--forecaster", "off", "--link", "4GB/s", "--json", report});
  const auto run = nlohmann::json::parse(ReadAll(report))["status"]["workers"][0]["stats"];
  const auto simulated = nlohmann::json::parse(
      Output({"simulate", "--as-recorded", "--trace", trace, "--model", mixed, "--json", "-"}));
  for (const char* figure : {"decision_digest", "hits", "misses", "bytes_demand"}) {
    EXPECT_EQ(simulated[figure], run[figure]) << figure;
  }
  EXPECT_GT(run["misses"], 100);
  const auto inspected =
      nlohmann::json::parse(Output({"trace", "inspect", trace, "--json", "-"}))["traces"][0];
  EXPECT_EQ(inspected["expert_blocks"],
            nlohmann::json::parse(
                R"([{"bytes": 20736, "experts": 144}, {"bytes": 11520, "experts": 432}])"));
  const auto rows = [&](const std::vector<std::string>& extra) {
    auto found =
        nlohmann::json::parse(Output({"replay", trace, "--residency", "30%", "--policy",
                                      "lru,ours,belady", "--bootstrap", "0", "--json", "-"},
                                     extra))["rows"];
    for (auto& row : found) {
      row.erase("us_per_event");
      row.erase("us_per_event_p99");
    }
    return found;
  };
  // Alone as with the model beside it: the slots and bytes of each size.
  const auto alone = rows({});
  EXPECT_EQ(alone, rows({"--model", mixed}));
  EXPECT_GT(alone[0]["slot_bytes"], 0);
  EXPECT_NE(alone, rows({"--expert-bytes", "20736"}));
  const auto plan = nlohmann::json::parse(
      Output({"inspect", mixed, "--expert-memory", "30%", "--json", "-"}))["memory_plan"];
  EXPECT_EQ(alone[0]["slots"], plan["expert_slots"]);
  EXPECT_EQ(alone[0]["slot_bytes"], plan["expert_bytes"]);
}

// A KV block of 16 tokens is eight of the smaller slots. Five sequences need more blocks than there
// are at first, and one alone fewer.
TEST_F(PackTest, TheKvCacheGrowsIntoTheSmallerOfTwoSizesOfSlots) {
  const std::string mixed = folder_ + "/mixed";
  Pack("mixed", {"--quant", "int4", "--quant-popular", "25%:int8", "--trace", RecordTrace()});
  const auto text_of = [](const Server& server, int sequences) {
    const std::string body =
        R"({"prompt":"The river","temperature":0.8,"seed":3,"ignore_eos":true,"max_tokens":50,"n":)";
    return JoinedStrings(server.Post("/v1/completions", body + std::to_string(sequences) + "}"),
                         "text");
  };
  std::string one, five;
  {
    Server resident({"--model", mixed, "--workers", "1", "--device-memory", "host"});
    one = text_of(resident, 1);
    five = text_of(resident, 5);
    resident.ExpectEnds();
  }
  std::vector<std::string> settings = {"--model",     mixed,   "--expert-memory",  "75%",
                                       "--kv-memory", "800KB", "--kv-memory-most", "3MB"};
  std::vector<std::string> inspect = settings;
  inspect.erase(inspect.begin());
  inspect.insert(inspect.begin(), "inspect");
  inspect.insert(inspect.end(), {"--json", "-"});
  const auto plan = nlohmann::json::parse(Output(inspect))["memory_plan"];
  ASSERT_EQ(plan["kv_blocks"], 8);
  settings.insert(settings.end(), {"--workers", "1", "--prefix-cache", "off", "--link", "4GB/s"});
  Server server(settings);
  const std::string worker = "{worker=\"2\"}";
  const auto blocks = [&] { return server.Figure("expertflow_worker_kv_blocks_total" + worker); };
  EXPECT_EQ(text_of(server, 1), one);
  EXPECT_EQ(blocks(), 8);
  EXPECT_EQ(text_of(server, 5), five);
  EXPECT_GT(blocks(), 8);
  EXPECT_LT(blocks(), plan["kv_blocks_most"]);  // there were slots left
  EXPECT_EQ(server.Figure("expertflow_worker_preemptions_total" + worker), 0);
  // One exchange of 8 slots comes back after 256 steps that did not need it.
  int rounds = 0;
  for (; blocks() > 8 && rounds < 400; ++rounds) EXPECT_EQ(text_of(server, 1), one);
  EXPECT_EQ(blocks(), 8) << rounds << " requests";
  server.ExpectEnds();
}

TEST_F(PackTest, AnotherOrderIsTheSameModel) {
  const std::string trace = RecordTrace();
  Pack("plain", {});
  Pack("ordered", {"--order", trace});
  EXPECT_NE(ReadAll(folder_ + "/plain/model.efstore"), ReadAll(folder_ + "/ordered/model.efstore"));
  const auto fingerprint = [&](const std::string& name) {
    const std::string out = folder_ + "/" + name + ".eft";
    Run(folder_ + "/" + name, {"--record", out});
    return nlohmann::json::parse(
        Output({"trace", "inspect", out, "--json", "-"}))["traces"][0]["fingerprint"];
  };
  EXPECT_EQ(fingerprint("plain"), fingerprint("ordered"));
  EXPECT_EQ(Run(folder_ + "/plain", {}),
            Run(folder_ + "/ordered", {"--workers", "2", "--expert-memory", "30%"}));
}

TEST_F(PackTest, EveryMatrixMayBeQuantised) {
  const auto report = Pack("all", {"--quant", "int8", "--quant-scope", "all"})["quantisation"];
  // Experts, the projections of attention, the shared experts, the embedding; no routers or gates.
  EXPECT_EQ(report["tensors"].size(), 12u * 48 * 3 + 12 * (4 + 3) + 1);
  for (const auto& tensor : report["tensors"]) {
    EXPECT_EQ(tensor["name"].get<std::string>().find("mlp.gate."), std::string::npos);
    EXPECT_LT(tensor["relative_error"].get<double>(), 0.01);
  }
  EXPECT_LT(report["dense_bytes"].get<double>(), 0.6 * report["dense_bytes_kept"].get<double>());
  const std::string text = Run(folder_ + "/all", {"--workers", "1"});
  EXPECT_EQ(Run(folder_ + "/all", {"--workers", "2", "--expert-memory", "30%"}), text);
}

TEST_F(PackTest, BadInputIsNamed) {
  const std::string trace = RecordTrace();
  const auto says = [&](const std::vector<std::string>& extra, const char* what) {
    const std::string error = Refused(extra);
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  says({"--quant-scope", "all"}, "--quant TYPE is missing");
  for (const char* popular :
       {"20", "20:int8", "20%", "20%:int3", "%:int8", "120%:int8", "-1%:int8"}) {
    says({"--quant", "int4", "--trace", trace, "--quant-popular", popular}, "such as 20%:int8");
  }
  says({"--quant", "int4", "--quant-popular", "20%:int8"}, "--trace FILE is missing");
  says({"--quant-popular", "20%:int8", "--trace", trace}, "--quant TYPE is missing");
  says({"--trace", trace}, "only --quant-popular needs it");
  says({"--order", folder_ + "/none"}, "none");
  std::ofstream(folder_ + "/other.jsonl")
      << R"({"format": "expertflow-routing", "version": 1, "model": "other", "experts": [4, 4], "top_k": 1, "expert_bytes": 100})"
      << "\n"
      << R"({"sequence": 0, "experts": [[1], [2]]})"
      << "\n";
  says({"--order", folder_ + "/other.jsonl"},
       "a trace of another model: 2 MoE layers of 4 experts");
}

}  // namespace
}  // namespace expertflow::testing

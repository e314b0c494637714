#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/unit/predictor/random_forecaster.h"
#include "tests/unit/worker/fault_device.h"
#include "tests/unit/worker/random_moe.h"
#include "worker/cached_executor.h"

namespace expertflow {
namespace {

using testing::FaultDevice;
using ::testing::HasSubstr;
using testing::RandomMoe;
using testing::RandomStep;

std::unique_ptr<FaultDevice> MakeDevice(const LinkProperties& link) {
  CpuDeviceOptions options;
  options.threads = 1;
  options.link = link;
  auto device = CreateCpuDevice(options);
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return std::make_unique<FaultDevice>(std::move(device).value());
}

// `slots` in all, each class with about the same share of its experts.
std::vector<int32_t> SlotsByClass(const RandomMoe& model, int32_t slots) {
  std::vector<int32_t> of_class;
  int64_t experts = 0;
  int32_t given = 0;
  for (const SlotClass& c : SlotClassesOfSource(model)) {
    experts += c.experts;
    const auto all = static_cast<int32_t>(slots * experts / RandomMoe::TotalExperts());
    of_class.push_back(all - given);
    given = all;
  }
  return of_class;
}

struct Rig {
  Rig(DType dtype, CachedExecutorOptions options, const LinkProperties& link = {})
      : model(dtype), device(MakeDevice(link)) {
    options.top_k = RandomMoe::kTopK;
    options.slots = SlotsByClass(model, options.slots.front());
    const uint64_t bytes = CachedExecutorMemoryBytes(model, options.slots, options.stream_buffers);
    auto allocation = device->Allocate(bytes);
    EXPECT_TRUE(allocation.ok()) << allocation.status().ToString();
    memory = std::move(allocation).value();
    options.memory = memory->data();
    options.memory_bytes = memory->bytes();
    in_place = std::make_unique<InPlaceExecutor>(*device, model);
    auto created = CachedExecutor::Create(*device, model, options);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    cached = std::move(created).value();
  }

  // Returns the cached executor's status; on success the output is compared bit by bit.
  Status RunLayer(RandomStep& step, int32_t layer) {
    std::vector<float> expected;
    std::vector<float> actual;
    EXPECT_TRUE(in_place->RunExperts(step.Call(layer, 0, &expected)).ok());
    const Status status = cached->RunExperts(step.Call(layer, cached->LookaheadLayers(), &actual));
    const Status invariants = cached->CheckInvariants();
    EXPECT_TRUE(invariants.ok()) << invariants.ToString();
    if (status.ok()) {
      EXPECT_EQ(std::memcmp(expected.data(), actual.data(), expected.size() * 4), 0)
          << "layer " << layer;
    }
    return status;
  }

  // Steps with all layers; every status must be ok.
  void Run(int steps, uint64_t seed, bool allow_prefill = true) {
    std::mt19937_64 random(seed);
    for (int s = 0; s < steps; ++s) {
      RandomStep step(random, allow_prefill);
      for (int32_t l = 0; l < RandomMoe::kLayers; ++l) {
        if (l == RandomMoe::kDenseLayer) continue;
        const Status status = RunLayer(step, l);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    }
  }

  RandomMoe model;
  std::unique_ptr<FaultDevice> device;
  std::unique_ptr<DeviceAllocation> memory;
  std::unique_ptr<InPlaceExecutor> in_place;
  std::unique_ptr<CachedExecutor> cached;  // before device and memory go
};

CachedExecutorOptions Options(int32_t slots, int32_t stride = 2) {
  CachedExecutorOptions options;
  options.slots = {slots};  // Rig divides them
  options.stride = stride;
  options.poison = true;
  options.prefetch.min_probability_ppm = 200'000;
  return options;
}

// Slots, prefetch stride, chunk bytes, streaming buffers, most delay of a copy in microseconds.
struct Setting {
  int32_t slots;
  int32_t stride;
  uint64_t chunk_bytes;
  int32_t buffers;
  int64_t delay_us;
};

class SameBits : public ::testing::TestWithParam<Setting> {};

TEST_P(SameBits, FIELD_04_FIELD_11_FIELD_12_FIELD_15_AsInPlace) {
  const Setting setting = GetParam();
  CachedExecutorOptions options = Options(setting.slots, setting.stride);
  options.chunk_bytes = setting.chunk_bytes;
  options.stream_buffers = setting.buffers;
  options.outstanding_chunks = 1 + setting.slots % 3;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Rig rig(dtype, options);
    rig.device->DelayCopies(setting.delay_us * 1000, 7);
    rig.Run(setting.delay_us > 0 ? 6 : 60, 11);
    const ExecutorStats stats = rig.cached->stats();
    EXPECT_EQ(stats.hits + stats.late_hits + stats.misses, rig.in_place->stats().hits);
    if (setting.slots == 0) {
      EXPECT_EQ(stats.bypasses, stats.misses);
    }
    if (setting.slots == RandomMoe::TotalExperts()) {
      EXPECT_EQ(stats.bypasses, 0u);
      EXPECT_EQ(rig.cached->LookaheadLayers(), 0);
    }
    if (setting.stride == 0) {
      EXPECT_EQ(stats.bytes_prefetch, 0u);
    }
    EXPECT_GT(rig.device->fills(), 0) << "poison is on";
  }
}

TEST(CachedExecutor, FIELD_04_AForecasterChangesWhoLeavesAndNoBit) {
  const auto run = [](const CachedExecutorOptions& options) {
    Rig rig(DType::kBF16, options);
    rig.Run(80, 5);
    return rig.cached->stats();
  };
  CachedExecutorOptions options = Options(7);
  const ExecutorStats without = run(options);
  const std::vector<int32_t> experts(RandomMoe::kLayers - 1, RandomMoe::kExperts);
  options.forecaster = std::make_shared<NextUseModel>(testing::RandomForecaster(experts, 5, 2));
  options.policy_time_most = 1e6;  // these layers are tiny
  const ExecutorStats with = run(options);
  EXPECT_TRUE(with.forecast_on);
  EXPECT_EQ(with.hits + with.late_hits + with.misses,
            without.hits + without.late_hits + without.misses);
  EXPECT_NE(with.misses, without.misses);
}

TEST(CachedExecutor, AForecasterThatIsTooSlowForTheLayersIsGivenUp) {
  CachedExecutorOptions options = Options(7);
  const std::vector<int32_t> experts(RandomMoe::kLayers - 1, RandomMoe::kExperts);
  options.forecaster = std::make_shared<NextUseModel>(testing::RandomForecaster(experts, 5, 2));
  options.policy_time_most = 0;
  Rig rig(DType::kBF16, options);
  rig.Run(10, 5);
  EXPECT_TRUE(rig.cached->stats().forecast_on) << "judged too early";
  rig.Run(200, 6);
  EXPECT_FALSE(rig.cached->stats().forecast_on);
}

TEST(CachedExecutor, AForecasterOfOtherLayersIsRefused) {
  Rig rig(DType::kBF16, Options(2));
  CachedExecutorOptions options = Options(2);
  options.top_k = RandomMoe::kTopK;
  options.slots = SlotsByClass(rig.model, 2);
  options.memory = rig.memory->data();
  options.memory_bytes = rig.memory->bytes();
  options.forecaster = std::make_shared<NextUseModel>(testing::RandomForecaster({8, 8}, 5, 2));
  const auto created = CachedExecutor::Create(*rig.device, rig.model, options);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(created.status().message(), HasSubstr("fitted for other layers"));
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  const uint64_t chunks[] = {1 << 20, 100, 64, 257, 1000, 1152, 4096, 777};
  size_t i = 0;
  for (const int32_t slots : {0, 1, 2, 3, 7, RandomMoe::TotalExperts()}) {
    for (const int32_t stride : {0, 3}) {
      settings.push_back({slots, stride, chunks[i++ % 8], 2, 0});
      settings.push_back({slots, stride, 300 + 400 * (i % 3), 3, 60});
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(All, SameBits, ::testing::ValuesIn(Settings()), [](const auto& info) {
  const Setting& s = info.param;
  return "Slots" + std::to_string(s.slots) + "Stride" + std::to_string(s.stride) + "Chunk" +
         std::to_string(s.chunk_bytes) + "Delay" + std::to_string(s.delay_us);
});

TEST(CachedExecutor, ResidentModelOnlyHits) {
  Rig rig(DType::kBF16, Options(RandomMoe::TotalExperts()));
  rig.Run(60, 3);
  const ExecutorStats before = rig.cached->stats();
  rig.Run(10, 3);
  const ExecutorStats after = rig.cached->stats();
  EXPECT_EQ(after.misses, before.misses);
  EXPECT_EQ(after.bytes_demand + after.bytes_prefetch, before.bytes_demand + before.bytes_prefetch);
  EXPECT_EQ(after.stall_ns, before.stall_ns);
  EXPECT_EQ(after.slots_used, static_cast<uint64_t>(RandomMoe::TotalExperts()));
}

TEST(CachedExecutor, TheUseAndPlaceOfEachExpertIsReported) {
  Rig rig(DType::kBF16, Options(6));
  std::mt19937_64 random(5);
  RandomStep step(random, /*allow_prefill=*/true);
  ASSERT_TRUE(rig.RunLayer(step, 0).ok());
  std::vector<float> out;
  const MoeLayerCall call = step.Call(0, 0, &out);
  const ExpertReport cached = rig.cached->experts();
  std::vector<uint64_t> expected(cached.rows.size());
  for (int32_t i = 0; i < call.m * call.top_k; ++i) ++expected[static_cast<size_t>(call.ids[i])];
  EXPECT_EQ(cached.rows, expected);
  EXPECT_EQ(cached.experts,
            std::vector<uint32_t>(cached.layers.size(), static_cast<uint32_t>(call.experts)));
  const auto absent = std::count(cached.places.begin(), cached.places.end(), ExpertPlace::kAbsent);
  EXPECT_EQ(cached.places.size() - static_cast<size_t>(absent), rig.cached->stats().slots_used);

  const ExpertReport in_place = rig.in_place->experts();
  EXPECT_EQ(in_place.rows, expected);
  EXPECT_EQ(in_place.places,
            std::vector<ExpertPlace>(RandomMoe::TotalExperts(), ExpertPlace::kResident));
}

TEST(CachedExecutor, PrefetchFindsExpertsBeforeTheyAreNeeded) {
  Rig with(DType::kBF16, Options(24, 1));
  Rig without(DType::kBF16, Options(24, 0));
  with.Run(200, 5, false);
  without.Run(200, 5, false);
  EXPECT_LT(with.cached->stats().misses, without.cached->stats().misses);
  EXPECT_GT(with.cached->stats().prefetch_used, 50u);
  EXPECT_GT(with.cached->stats().prefetch_predictions, 0u);
  EXPECT_GT(with.cached->stats().prefetch_correct * 2, with.cached->stats().prefetch_predictions);
  EXPECT_EQ(without.cached->stats().prefetch_predictions, 0u);
}

// Decided elsewhere: what is published holds from the next layer on, and what is measured can be
// had in whole windows.
TEST(CachedExecutor, FollowsThePublishedLeadAndGoesOnWithIt) {
  std::atomic<uint64_t> published{0};
  CachedExecutorOptions options = Options(24, 4);
  options.dynamic_stride = true;
  options.published_stride = &published;
  Rig rig(DType::kBF16, options);
  EXPECT_FALSE(rig.cached->TakeStride().has_value());
  rig.Run(20, 5, false);
  EXPECT_EQ(rig.cached->stats().stride, 1u);
  published = PackStride({1, 3, StrideCause::kMeasured, false});
  rig.Run(1, 6, false);
  EXPECT_EQ(rig.cached->stats().stride, 3u);
  published = 0;  // no news
  rig.Run(1, 7, false);
  EXPECT_EQ(rig.cached->stats().stride, 3u);
  published = PackStride({2, 60, StrideCause::kLinkBound, true});
  rig.Run(1, 8, false);
  EXPECT_EQ(rig.cached->stats().stride, 4u);  // as far as there is room
  EXPECT_TRUE(rig.cached->stats().link_bound);
  EXPECT_EQ(rig.cached->stats().stride_changes, 2u);
  const auto measured = rig.cached->TakeStride();
  ASSERT_TRUE(measured.has_value());
  EXPECT_EQ(measured->stride_max, 4);
  EXPECT_GT(measured->expert_bytes, 0u);
  EXPECT_GT(measured->window.distinct, measured->window.events);
  EXPECT_FALSE(rig.cached->TakeStride().has_value());
}

TEST(CachedExecutor, TheLeadStaysWithinItsBounds) {
  std::atomic<uint64_t> published{PackStride({1, 1, StrideCause::kMeasured, false})};
  for (const bool followed : {false, true}) {
    CachedExecutorOptions options = Options(24, 4);
    options.dynamic_stride = true;
    options.stride_min = 2;
    if (followed) options.published_stride = &published;
    Rig rig(DType::kBF16, options);
    EXPECT_EQ(rig.cached->LookaheadLayers(), 2) << "before anything is measured";
    for (int i = 0; i < 20; ++i) {
      rig.Run(4, static_cast<uint64_t>(i), false);
      EXPECT_GE(rig.cached->stats().stride, 2u);
      EXPECT_LE(rig.cached->stats().stride, 4u);
    }
  }
}

// Small experts go out in the call that predicts them: a thread that has to be woken first would
// start them when they are needed already.
TEST(CachedExecutor, SmallPrefetchesAreOnTheirWayBeforeTheCallReturns) {
  for (const uint64_t rate : {uint64_t{50'000'000}, uint64_t{1'000'000'000'000}}) {
    for (const bool copy_thread : {false, true}) {
      Rig rig(DType::kBF16, Options(24, 1), {.bytes_per_second = rate, .copy_thread = copy_thread});
      rig.Run(200, 5, false);
      const ExecutorStats stats = rig.cached->stats();
      EXPECT_GT(stats.prefetch_used, 50u);
      EXPECT_GT(stats.bytes_prefetch, stats.bytes_demand / 10) << rate << " bytes/s";
    }
  }
}

TEST(CachedExecutor, FIELD_26_UselessPrefetchSwitchesItselfOff) {
  CachedExecutorOptions options = Options(6, 1);
  options.prefetch.period_bytes = 100'000;
  options.prefetch.waste_weight_percent = 100;
  options.prefetch.min_probability_ppm = 1;  // everything that the predictor says
  Rig rig(DType::kBF16, options);
  // How much arrives before it is cancelled, and so counts, depends on how busy the machine is.
  for (uint64_t seed = 5; seed < 50 && rig.cached->stats().prefetch_switch_offs == 0; ++seed) {
    rig.Run(50, seed, false);
  }
  EXPECT_GT(rig.cached->stats().prefetch_switch_offs, 0u);
}

TEST(CachedExecutor, FIELD_23_PrefillDoesNotPredictAndDoesNotEvict) {
  Rig rig(DType::kBF16, Options(4));
  rig.Run(30, 5, false);
  const ExecutorStats before = rig.cached->stats();
  std::vector<float> out;
  std::mt19937_64 random(1);
  const std::vector<uint8_t> prefill(5, 1);
  for (int i = 0; i < 20; ++i) {
    RandomStep step(random, false);
    MoeLayerCall call = step.Call(0, 2, &out);
    call.prefill = std::span(prefill).first(static_cast<size_t>(call.m));
    ASSERT_TRUE(rig.cached->RunExperts(call).ok());
  }
  const ExecutorStats after = rig.cached->stats();
  EXPECT_EQ(after.bytes_prefetch, before.bytes_prefetch);
  EXPECT_EQ(after.misses - before.misses, after.bypasses - before.bypasses);
}

TEST(CachedExecutor, FIELD_09_FailedCopiesAreErrorsThatNameTheExpert) {
  for (const int32_t slots : {0, 2, 7}) {
    CachedExecutorOptions options = Options(slots);
    options.chunk_bytes = 1500;
    Rig rig(DType::kF32, options);
    rig.device->DelayCopies(5'000, 5);
    std::mt19937_64 random(17);
    int failed = 0;
    for (int s = 0; s < 40; ++s) {
      rig.device->FailCopies(s % 2 == 0 ? 0.1 : 0);
      RandomStep step(random, true);
      for (int32_t l = 0; l < RandomMoe::kLayers; ++l) {
        if (l == RandomMoe::kDenseLayer) continue;
        // What succeeds is right, also after failures: RunLayer compares.
        const Status status = rig.RunLayer(step, l);
        if (status.ok()) continue;
        ++failed;
        EXPECT_THAT(status.message(), HasSubstr("expert"));
        EXPECT_THAT(status.message(), HasSubstr("injected failure"));
      }
    }
    EXPECT_GT(failed, 0);
    EXPECT_GT(rig.cached->stats().copy_failures, 0u);
    rig.device->FailCopies(0);
    rig.Run(20, 23);
  }
}

TEST(CachedExecutor, StuckCopyEndsAtTheDeadline) {
  for (const int32_t slots : {0, 7}) {
    CachedExecutorOptions options = Options(slots, 0);
    options.copy_deadline_ns = 50'000'000;
    Rig rig(DType::kBF16, options);
    std::mt19937_64 random(17);
    RandomStep step(random, false);
    rig.device->Hang();
    const Status status = rig.RunLayer(step, 0);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("layer 0 expert"));
    EXPECT_THAT(status.message(), HasSubstr("B)"));  // its bytes
    rig.device->Release();
    rig.Run(10, 23);
  }
}

TEST(CachedExecutor, DestroyedWhileCopiesAreQueued) {
  for (int i = 0; i < 10; ++i) {
    Rig rig(DType::kBF16, Options(20, 3));
    rig.device->DelayCopies(100'000, static_cast<uint64_t>(i));
    rig.Run(1, static_cast<uint64_t>(i), false);
  }
}

TEST(CachedExecutor, BadOptionsAndCallsAreRefused) {
  const RandomMoe model(DType::kBF16);
  const auto device = MakeDevice({});
  CachedExecutorOptions options = Options(4);
  options.top_k = RandomMoe::kTopK;
  EXPECT_THAT(CachedExecutor::Create(*device, model, options).status().message(),
              HasSubstr("slots of 1 sizes for blocks of 2"));
  options.slots = SlotsByClass(model, 4);
  EXPECT_EQ(CachedExecutor::Create(*device, model, options).status().code(),
            StatusCode::kResourceExhausted);
  options.stream_buffers = 1;
  EXPECT_EQ(CachedExecutor::Create(*device, model, options).status().code(),
            StatusCode::kInvalidArgument);

  Rig rig(DType::kBF16, Options(4));
  std::mt19937_64 random(1);
  RandomStep step(random, false);
  std::vector<float> out;
  MoeLayerCall call = step.Call(0, 0, &out);
  std::vector<int32_t> ids(call.ids, call.ids + call.m * call.top_k);
  ids[1] = RandomMoe::kExperts;
  call.ids = ids.data();
  EXPECT_THAT(rig.cached->RunExperts(call).message(), HasSubstr("chose expert 8 of 8"));
  EXPECT_THAT(rig.in_place->RunExperts(call).message(), HasSubstr("chose expert 8 of 8"));
  call = step.Call(0, 0, &out);
  call.layer = LayerId(RandomMoe::kDenseLayer);
  EXPECT_THAT(rig.cached->RunExperts(call).message(), HasSubstr("layer 1"));
  rig.Run(3, 1);
}

TEST(RowGroups, FIELD_15_DuplicateIdsKeepTheirRows) {
  const int32_t ids[] = {4, 4, 1, 1, 4, 0};
  const std::vector<uint8_t> prefill = {0, 1, 0};
  MoeLayerCall call;
  call.layer = LayerId(0);
  call.m = 3;
  call.top_k = 2;
  call.experts = 5;
  call.ids = ids;
  call.prefill = prefill;
  RowGroups groups;
  ASSERT_TRUE(groups.Build(call).ok());
  ASSERT_EQ(groups.demands().size(), 3u);
  EXPECT_EQ(groups.demands()[0].expert, ExpertId(0));
  EXPECT_EQ(groups.demands()[1].prefill_rows, 2);
  EXPECT_EQ(groups.demands()[2].decode_rows, 3);
  const int32_t in_rows[] = {0, 0, 2};
  const int32_t out_rows[] = {0, 1, 4};
  ASSERT_EQ(groups.rows(2).size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(groups.rows(2)[i].in_row, in_rows[i]);
    EXPECT_EQ(groups.rows(2)[i].out_row, out_rows[i]);
  }
  EXPECT_EQ(groups.decode_rows().size(), 2u);
}

}  // namespace
}  // namespace expertflow

// The heap against the definition: merge the pair of lowest rank, leftmost first, until none is
// left.
#include "model/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/byte_alphabet.h"

namespace expertflow {
namespace {

using Pair = std::pair<int32_t, int32_t>;

std::vector<int32_t> EncodeByDefinition(std::vector<int32_t> ids,
                                        const std::map<Pair, Merge>& merges) {
  for (;;) {
    const Merge* best = nullptr;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found == merges.end()) continue;
      if (best == nullptr || found->second.rank < best->rank) {
        best = &found->second;
        best_at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[best_at] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeTest, RandomMergesGiveWhatTheDefinitionGives) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Vocabulary vocabulary;
    std::vector<std::string> contents = {"a", "b", "c"};
    for (int32_t id = 0; id < 3; ++id) ASSERT_TRUE(vocabulary.Add(contents[id], id).ok());
    MergeTable table(12);
    std::map<Pair, Merge> merges;
    for (int32_t rank = 0; rank < 12;) {
      const auto left = static_cast<int32_t>(random() % contents.size());
      const auto right = static_cast<int32_t>(random() % contents.size());
      const std::string merged = contents[left] + contents[right];
      // One way to each token: then the order of merges is the whole definition.
      if (vocabulary.Find(merged).has_value()) continue;
      const auto id = static_cast<int32_t>(contents.size());
      ASSERT_TRUE(vocabulary.Add(merged, id).ok());
      contents.push_back(merged);
      table.Append(left, right, id);
      merges[{left, right}] = {rank++, id};
    }
    const Bpe bpe(std::move(vocabulary), std::move(table), {});
    BpeScratch scratch;
    for (int text = 0; text < 50; ++text) {
      std::string piece;
      std::vector<int32_t> bytes;
      for (size_t i = random() % 40; i > 0; --i) {
        bytes.push_back(static_cast<int32_t>(random() % 3));
        piece += contents[bytes.back()];
      }
      std::vector<int32_t> ids;
      ASSERT_TRUE(bpe.Encode(piece, &scratch, &ids).ok());
      EXPECT_EQ(ids, EncodeByDefinition(bytes, merges)) << piece;
    }
  }
}

}  // namespace
}  // namespace expertflow

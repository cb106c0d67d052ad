// What a rank did last, as it is read while the rank runs on.
#include "comm/record/rank_record.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace dtensor {
namespace {

TEST(RankRecord, SaysOperatorsAndCollectives) {
  static const std::string mm = "aten::mm", tp = "tp";
  RankRecord record(1, 2);
  EXPECT_EQ(record.recent(), "");
  record.note(mm);
  record.note(CollectiveKind::all_reduce, 3, &tp);
  record.note(CollectiveKind::barrier, 4, nullptr);
  EXPECT_EQ(record.recent(), "aten::mm, all_reduce #3 on tp, barrier #4");
}

// Autograd's threads and helpers write beside the rank's own: an entry of which each wrote a half has neither a name
// nor a kind.
TEST(RankRecord, MayBeReadWhileThreadsOfTheRankWrite) {
  static const std::string mm = "aten::mm";
  RankRecord record(0, 1);
  std::atomic<bool> over{false};
  std::thread operators([&] {
    while (!over) record.note(mm);
  });
  std::thread collectives([&] {
    for (std::uint64_t sequence = 1; !over; ++sequence) record.note(CollectiveKind::barrier, sequence, nullptr);
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    const std::string text = record.recent();
    EXPECT_EQ(text.find(", ,"), std::string::npos) << text;
  }
  over = true;
  operators.join();
  collectives.join();
}

}  // namespace
}  // namespace dtensor

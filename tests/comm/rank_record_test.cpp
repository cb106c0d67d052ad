// The record of a rank's last operations, read while the rank runs.
#include "comm/record/rank_record.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace dtensor {
namespace {

TEST(RankRecord, ListsOperatorsAndCollectives) {
  static const std::string mm = "aten::mm", tp = "tp";
  RankRecord record(1, 2);
  EXPECT_EQ(record.recent(), "");
  record.note(mm);
  record.note(CollectiveKind::all_reduce, 3, &tp);
  record.note(CollectiveKind::barrier, 4, nullptr);
  EXPECT_EQ(record.recent(), "aten::mm, all_reduce #3 on tp, barrier #4");
}

// Threads of autograd and helper threads write concurrently with the rank's thread. An entry of two half writes would
// have neither name nor kind.
TEST(RankRecord, MayBeReadDuringConcurrentWrites) {
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

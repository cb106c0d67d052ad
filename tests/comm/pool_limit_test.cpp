// The buffer pool where the system has no more memory.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/memory/buffer_pool.h"
#include "support/address_space.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kMegabyte = std::int64_t{1} << 20;

// As `ulimit -v` does: what the pool keeps unused is enough for another block, but of another size.
[[noreturn]] void take_what_is_kept() {
  set_pool_limit(static_cast<std::size_t>(1024 * kMegabyte));
  {
    std::vector<at::Tensor> freed;
    for (int i = 0; i < 8; ++i) freed.push_back(pooled_empty({64 * kMegabyte}, at::kByte));
  }
  leave_address_space(static_cast<std::uint64_t>(64 * kMegabyte));
  try {
    std::_Exit(pooled_empty({300 * kMegabyte}, at::kByte).defined() ? 0 : 1);
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "%s\n", e.what_without_backtrace());
    std::_Exit(2);
  }
}

TEST(PoolLimit, GivesBackWhatIsUnusedBeforeThereIsNoMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what is freed";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  EXPECT_EXIT(take_what_is_kept(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dtensor::test

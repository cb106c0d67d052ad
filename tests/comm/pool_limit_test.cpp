// The buffer pool on a system without free memory.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/memory/pool/available_memory.h"
#include "comm/memory/pool/buffer_pool.h"
#include "support/address_space.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kMegabyte = std::int64_t{1} << 20;

// Limits the address space as `ulimit -v`: the pool's cached blocks suffice for another block, but have another size.
[[noreturn]] void exit_with_pooled_memory() {
  set_memory_pool_limit(static_cast<std::size_t>(1024 * kMegabyte));
  {
    std::vector<at::Tensor> freed;
    for (int i = 0; i < 8; ++i) freed.push_back(pooled_empty({64 * kMegabyte}, at::kByte));
  }
  limit_address_space(static_cast<std::uint64_t>(64 * kMegabyte));
  try {
    std::_Exit(pooled_empty({300 * kMegabyte}, at::kByte).defined() ? 0 : 1);
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "%s\n", e.what_without_backtrace());
    std::_Exit(2);
  }
}

// Runs in its own process, because a chosen limit persists.
[[noreturn]] void share_and_choose() {
  const auto alone = memory_pool_stats().limit_bytes;
  share_pool_limit(3);
  const auto of_three = memory_pool_stats().limit_bytes;
  set_memory_pool_limit(12345);
  share_pool_limit(3);
  std::_Exit(alone > 0 && of_three == alone / 3 && memory_pool_stats().limit_bytes == 12345 ? 0 : 1);
}

TEST(PoolLimit, IsSharedByTheProcessesOfAHostUnlessSet) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(share_and_choose(), ::testing::ExitedWithCode(0), "");
}

TEST(PoolLimit, RespectsTheLimitOfAContainer) {
  const auto machine = available_memory("/nowhere");
  EXPECT_GT(machine, std::size_t{1} << 26);
  const auto group = [](const std::string& name, const std::string& text) {
    const auto root = std::filesystem::temp_directory_path() / ("cgroup_" + std::to_string(getpid()));
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
    const auto bytes = available_memory(root);
    std::filesystem::remove_all(root);
    return bytes;
  };
  EXPECT_EQ(group("memory.max", "67108864\n"), std::size_t{67108864});
  EXPECT_EQ(group("memory/memory.limit_in_bytes", "33554432"), std::size_t{33554432});
  EXPECT_EQ(group("memory.max", "max\n"), machine);
}

TEST(PoolLimit, ReleasesCachedBlocksBeforeFailing) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer does not return freed memory";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  EXPECT_EXIT(exit_with_pooled_memory(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dtensor::test

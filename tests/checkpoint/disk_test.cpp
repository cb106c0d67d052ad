// Disks that are slow or full on one rank: this program replaces pwrite and pread.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "checkpoint/folder.h"

namespace {

using std::chrono::milliseconds;

thread_local milliseconds pause_here{0};              // before each transfer of this thread
thread_local bool is_rank = false;                    // false on background threads
std::atomic<std::int64_t> pause_in_background_ms{0};  // before the next transfer of a background thread
std::atomic<std::int64_t> bytes_left{1LL << 60};      // bytes of free disk space

void linger() {
  std::this_thread::sleep_for(pause_here + milliseconds(is_rank ? 0 : pause_in_background_ms.exchange(0)));
}

}  // namespace

extern "C" ssize_t pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  linger();
  if (bytes_left.fetch_sub(static_cast<std::int64_t>(bytes)) >= static_cast<std::int64_t>(bytes)) {
    return ::syscall(SYS_pwrite64, file, data, bytes, offset);
  }
  errno = ENOSPC;
  return -1;
}

extern "C" ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) {
  linger();
  return ::syscall(SYS_pread64, file, data, bytes, offset);
}

namespace dtensor::test {
namespace {

constexpr RunOptions kHasty{.timeout = milliseconds(400)};
constexpr milliseconds kSlow{900};

// One sharded tensor, and one Partial tensor that is reduced between two writes.
StateTensors state(const Communicator& world, double value) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()});
  return {{"w", distribute_tensor(at::full({8, 3}, value), mesh, {Shard(0)})},
          {"p", DTensor::from_local(at::full({4}, value), mesh, {Partial()})}};
}

TEST(Disk, SlowDiskOnOneRankDoesNotTimeOut) {
  const Folder folder;
  run_local(
      2,
      [&](Communicator world) {
        const StateTensors tensors = state(world, 3);
        pause_here = world.rank() == 1 ? kSlow : milliseconds(0);
        save_state(folder / "c", world, tensors, {}, kQuick);
        const StateTensors targets = {
            {"w", distribute_tensor(at::zeros({8, 3}), DTensor(tensors[0].second).mesh(), {Shard(0)})},
            {"p", at::zeros({4})}};
        pause_here = world.rank() == 0 ? kSlow : milliseconds(0);  // reading headers is slow too
        load_state(folder / "c", world, targets);
        pause_here = milliseconds(0);
        EXPECT_TRUE(at::equal(DTensor(targets[0].second).full_tensor(), at::full({8, 3}, 3.0F)));
        EXPECT_TRUE(at::equal(targets[1].second, at::full({4}, 6.0F)));
      },
      kHasty);
}

TEST(Disk, SlowBackgroundSaveDoesNotTimeOut) {
  const Folder folder;
  run_local(
      2,
      [&](Communicator world) {
        const StateTensors tensors = state(world, 3);
        is_rank = true;
        pause_in_background_ms = kSlow.count();
        PendingSave pending = save_state_async(folder / "c", world, tensors, {}, kQuick);
        pending.wait();
        is_rank = false;  // the thread is reused
      },
      kHasty);
  EXPECT_EQ(pause_in_background_ms, 0);
  EXPECT_TRUE(verify_checkpoint(folder / "c").empty());
}

// The timeout is suspended for slow disks, not for ranks that do not arrive.
TEST(Disk, RankThatDoesNotFinishTimesOut) {
  const Folder folder;
  EXPECT_ANY_THROW(run_local(
      2,
      [&](Communicator world) {
        PendingSave pending = save_state_async(folder / "c", world, state(world, 1), {}, kQuick);
        if (world.rank() == 0) pending.wait();
        std::this_thread::sleep_for(kSlow);
      },
      kHasty));
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

// If the disk fills at any point of the save, all ranks get one error and the previous checkpoint remains.
TEST(Disk, FullDiskKeepsThePreviousCheckpoint) {
  const Folder folder;
  const auto save = [&](double value) {
    return errors_on(
        2, [&](const Communicator& world) { save_state(folder / "c", world, state(world, value), {}, kQuick); });
  };
  EXPECT_EQ(save(1)[0], "");
  for (std::int64_t space = 0;; space += 100) {
    bytes_left = space;
    const auto errors = save(2);
    bytes_left = 1LL << 60;
    if (errors[0].empty()) break;
    EXPECT_NE(errors[0].find("No space left on device"), std::string::npos) << errors[0];
    EXPECT_EQ(errors[0], errors[1]);
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const at::Tensor w = distribute_tensor(at::zeros({8, 3}), mesh, {Shard(0)});
      load_state(folder / "c", mesh.world(), {{"w", w}}, {.allow_unexpected = true});
      EXPECT_TRUE(at::equal(DTensor(w).full_tensor(), at::full({8, 3}, 1.0F)));
    });
    ASSERT_LT(space, 100'000);
  }
  EXPECT_TRUE(verify_checkpoint(folder / "c").empty());
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder / "c").parent_path())) {
    EXPECT_EQ(entry.path().filename(), "c");
  }
}

}  // namespace
}  // namespace dtensor::test

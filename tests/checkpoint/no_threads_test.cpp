// Saves on a system without free threads: for the refresh of the folder lock, or for a background save.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdlib>

#include "checkpoint/folder.h"
#include "support/address_space.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

std::size_t entries_of(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::uint64_t stack_of_a_thread() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) == 0) pthread_attr_getstacksize(&attributes, &bytes);
  return bytes;
}

StateTensors state_of(const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()});
  return {{"t", distribute_tensor(at::arange(8), mesh, {Shard(0)})}};
}

// Checks that no lock and no temporary folder is left beside the checkpoint.
int status_of(const Folder& folder) {
  if (!verify_checkpoint(folder / "saved").empty()) return 3;
  return entries_of(folder / "") == 1 ? 0 : 4;
}

// Runs in its own process (a death test): an ended thread's cached stack would satisfy the request.
int save_after_a_lock_without_a_thread() {
  const Folder folder;
  int refused = 0;
  run_local(1, [&](Communicator world) {
    const auto state = state_of(world);
    try {
      const AddressSpaceLimit little(stack_of_a_thread() / 2);
      save_state(folder / "saved", world, state, {}, kQuick);
    } catch (const c10::Error&) {
      ++refused;
    }
    save_state(folder / "saved", world, state, {}, kQuick);
  });
  return refused == 1 ? status_of(folder) : 5;
}

// The address space fits one stack, which the lock's thread takes.
int save_in_the_background_without_a_thread() {
  const Folder folder;
  run_local(1, [&](Communicator world) {
    const auto state = state_of(world);
    const AddressSpaceLimit little(stack_of_a_thread() / 2 * 3);
    auto pending = save_state_async(folder / "saved", world, state, {}, kQuick);
    pending.wait();
  });
  return status_of(folder);
}

class SaveWithoutThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer allocates its own memory";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  }
};

// The error must not leave the folder locked.
TEST_F(SaveWithoutThreads, FailsOnceAndSucceedsLater) {
  EXPECT_EXIT(std::_Exit(save_after_a_lock_without_a_thread()), ::testing::ExitedWithCode(0), "");
}

TEST_F(SaveWithoutThreads, BackgroundSaveIsWrittenByTheCaller) {
  EXPECT_EXIT(std::_Exit(save_in_the_background_without_a_thread()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dtensor::test

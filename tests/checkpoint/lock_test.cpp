// The folder lock: one program saves to a folder at a time. Covers the owner, takeover and leftovers.
#include "checkpoint/format/files/folder_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;
using files::FolderLock;
using std::chrono::milliseconds;

constexpr files::LockTimes kShort{milliseconds(20), milliseconds(300)};

std::string refusal(const std::string& folder, files::LockTimes times = kShort) {
  try {
    const FolderLock lock(folder, times);
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

nlohmann::json owner(const std::string& folder) {
  std::ifstream in(folder + ".lock");
  return nlohmann::json::parse(in);
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(Lock, SecondSaveIsRefusedWithReason) {
  const Folder folder;
  {
    const FolderLock first(folder / "c");
    EXPECT_NE(refusal(folder / "c").find("is under way; wait() for it first"), std::string::npos);
    EXPECT_EQ(owner(folder / "c")["pid"], ::getpid());
    first.check_held();
    EXPECT_EQ(refusal(folder / "d"), "");  // another folder
  }
  EXPECT_FALSE(fs::exists(folder / "c.lock"));
  EXPECT_EQ(refusal(folder / "c"), "");
}

// Locks of other processes are detected by the system's flock.
TEST(Lock, AnotherProcessIsNamed) {
  const Folder folder;
  nlohmann::json other;
  {
    const FolderLock mine(folder / "c");
    other = owner(folder / "c");
  }
  other["pid"] = 1;
  other["host"] = "elsewhere";
  other["program"] = "rival";
  write(folder / "c.lock", other.dump());
  const int descriptor = ::open((folder / "c.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  const std::string line = refusal(folder / "c");
  EXPECT_NE(line.find("another program saves to " + (folder / "c") + ": rival on host elsewhere, process 1, since 2"),
            std::string::npos)
      << line;
  ::close(descriptor);
  EXPECT_EQ(refusal(folder / "c"), "");  // an owner on this host without the flock is dead
}

TEST(Lock, StaleLockOfAnotherHostIsTakenOver) {
  const Folder folder;
  nlohmann::json other;
  {
    const FolderLock mine(folder / "c");
    other = owner(folder / "c");
  }
  other["boot"] = "another machine";
  write(folder / "c.lock", other.dump());
  std::jthread alive([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fs::last_write_time(folder / "c.lock", fs::file_time_type::clock::now());
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_NE(refusal(folder / "c").find("another program saves to"), std::string::npos);
  alive = {};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(folder / "c"), "");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort.stale_after);
}

// The system truncates thread names at 15 bytes, which may cut a UTF-8 character.
TEST(Lock, ProgramNameMayBeInvalidUtf8) {
  const struct Before {
    Before() { ::prctl(PR_GET_NAME, name); }
    ~Before() { ::prctl(PR_SET_NAME, name); }
    char name[17] = "";
  } before;
  for (const char* name : {"f\xc3\xbc"
                           "nfzehnbuchs\xc3",
                           "\xff"}) {
    ::prctl(PR_SET_NAME, name);
    const Folder folder;
    EXPECT_NO_THROW(files::FolderLock(folder / "c"));
    const files::FolderLock lock(folder / "c");
    EXPECT_NO_THROW(lock.check_held());
  }
}

TEST(Lock, OwnerRefreshesModificationTime) {
  const Folder folder;
  const FolderLock lock(folder / "c", kShort);
  const auto before = fs::last_write_time(folder / "c.lock");
  for (int i = 0; i < 500 && fs::last_write_time(folder / "c.lock") == before; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GT(fs::last_write_time(folder / "c.lock"), before);
}

TEST(Lock, LostLockIsAnErrorAndNotDeleted) {
  const Folder folder;
  std::optional<FolderLock> lock(std::in_place, folder / "c");
  write(folder / "c.lock", "{\"another\":1}");
  EXPECT_THROW(lock->check_held(), c10::Error);
  lock.reset();
  EXPECT_TRUE(fs::exists(folder / "c.lock"));
}

TEST(Lock, LockWithoutAnOwnerIsTakenOver) {
  const Folder folder;
  for (const char* text : {"", "{", "[]", "{\"host\": 3}", "\xff\xff"}) {
    write(folder / "c.lock", text);
    EXPECT_EQ(refusal(folder / "c"), "") << text;
  }
}

TEST(Lock, SaveHoldsLockUntilDone) {
  const Folder folder;
  const auto state = [] { return StateTensors{{"w", at::ones({8})}}; };
  run_local(2, [&](Communicator world) {
    PendingSave pending = save_state_async(folder / "c", world, state(), {}, kQuick);
    EXPECT_TRUE(fs::exists(folder / "c.lock"));
    EXPECT_THROW(save_state(folder / "c", world, state(), {}, kQuick), c10::Error);
    pending.wait();
    save_state(folder / "c", world, state(), {}, kQuick);
  });
  EXPECT_FALSE(fs::exists(folder / "c.lock"));
}

// A save that lost its lock does not replace the checkpoint of the new owner.
TEST(Lock, SaveThatLostItsLockFails) {
  const Folder folder;
  const auto errors = errors_on(2, [&](const Communicator& world) {
    PendingSave pending = save_state_async(folder / "c", world, {{"w", at::ones({8})}}, {}, kQuick);
    world.barrier();
    if (world.rank() == 0) fs::remove(folder / "c.lock");
    pending.wait();
  });
  expect_error(errors, {"c.lock was lost"});
  EXPECT_FALSE(fs::exists(folder / "c"));
}

TEST(Lock, LeftoversOfInterruptedSavesAreRemoved) {
  const Folder folder;
  const auto save = [&] {
    run_local(1, [&](Communicator world) { save_state(folder / "c", world, {{"w", at::ones({8})}}, {}, kQuick); });
  };
  save();
  for (const char* name :
       {"c.saving-some-host-12-3", "c.saving", "c.saving-notes", "c.saving.old", "cc.saving-h-1-2"}) {
    fs::create_directories(folder / name);
    write(folder / (std::string(name) + "/model.safetensors"), "half");
  }
  save();
  EXPECT_FALSE(fs::exists(folder / "c.saving-some-host-12-3") || fs::exists(folder / "c.saving"));
  for (const char* name : {"c.saving-notes", "c.saving.old", "cc.saving-h-1-2"}) EXPECT_TRUE(fs::exists(folder / name));
  // The state between two renames, on file systems that cannot exchange names atomically.
  fs::rename(folder / "c", folder / "c.saving-h-5-0.before");
  EXPECT_THROW(
      {
        try {
          read_checkpoint_index(folder / "c");
        } catch (const c10::Error& error) {
          EXPECT_NE(error.msg().find("c.saving-h-5-0.before is the previous checkpoint, from an interrupted save"),
                    std::string::npos);
          throw;
        }
      },
      c10::Error);
  save();
  EXPECT_TRUE(verify_checkpoint(folder / "c").empty());
  EXPECT_FALSE(fs::exists(folder / "c.saving-h-5-0.before"));
}

}  // namespace
}  // namespace dtensor::test

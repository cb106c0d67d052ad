// One save to a folder at a time, over processes and hosts: the file DIR.lock beside it, which names its owner.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace dtensor::files {

// How often an owner touches its lock, and how long one of another host may stay untouched before it counts as dead.
struct LockTimes {
  std::chrono::milliseconds heartbeat_interval{5'000}, stale_after{30'000};
};

// Held from construction to destruction; dropped by the system when the process dies.
class FolderLock {
 public:
  // Throws where another save holds it, with its owner in one line. A lock whose owner is dead is taken over: on this
  // host at once, since its flock is gone; one of another host when it was not touched for `stale_after`, for which
  // this waits.
  explicit FolderLock(const std::string& directory, LockTimes times = {});
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  // Throws where another program has taken it over meanwhile: this one was stopped for longer than `stale_after`.
  void check_held() const;

 private:
  bool try_open();
  bool take_over(LockTimes times);
  bool is_owned() const;
  void release() noexcept;
  void run_heartbeat(std::chrono::milliseconds heartbeat_interval);

  std::string directory_, path_, owner_;
  int descriptor_ = -1;
  bool flocked_ = false;
  std::jthread heartbeat_thread_;
};

// What tells this save's temporary names from any other's: host, process and a count.
std::string unique_name();

// The machine that this process is on, by name and start.
std::string machine_name();

}  // namespace dtensor::files

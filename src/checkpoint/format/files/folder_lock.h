// Allows one save per folder at a time, across processes and hosts, with a lock file DIR.lock that names its owner.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace dtensor::files {

// Interval in which an owner updates its lock file, and the age at which the lock of another host is stale.
struct LockTimes {
  std::chrono::milliseconds heartbeat_interval{5'000}, stale_after{30'000};
};

// Held from construction to destruction; the system releases it if the process dies.
class FolderLock {
 public:
  // Throws if another save holds the lock; the error names its owner. Takes over the lock of a dead owner: on this host
  // immediately, because its flock is released. On another host only after `stale_after` without an update, for which
  // the constructor waits.
  explicit FolderLock(const std::string& directory, LockTimes times = {});
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  // Throws if another program has taken over the lock, because this one was suspended for longer than `stale_after`.
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

// A name that is unique among all saves: host, process and a counter.
std::string unique_name();

// This machine: host name and boot id.
std::string machine_name();

}  // namespace dtensor::files

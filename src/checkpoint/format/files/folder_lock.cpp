// Lock file of a folder. flock() detects live owners on this machine, and on any host if the network file system
// supports it. Otherwise the owner in the file and the file's modification time decide.
#include "checkpoint/format/files/folder_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

namespace dtensor::files {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOwnerBytes = 4096;  // at most

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Start time of a process in clock ticks since boot, which distinguishes it from later processes with the same id. 0:
// no such process.
std::int64_t start_of(std::int64_t pid) {
  const std::string stat = first_line(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const auto name_end = stat.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::atoll(field.c_str());
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  return text;
}

struct Owner {
  std::string host, boot, since, program, name;
  std::int64_t pid = 0, start = 0;
};

// The program's name need not be UTF-8, as JSON requires: the kernel truncates it to 15 bytes.
std::string own_text() {
  const nlohmann::json owner{{"host", host_name()},  {"boot", first_line("/proc/sys/kernel/random/boot_id")},
                             {"pid", ::getpid()},    {"start", start_of(::getpid())},
                             {"since", now_text()},  {"program", first_line("/proc/self/comm")},
                             {"name", unique_name()}};
  return owner.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Empty if the text is invalid: the owner died before writing it.
std::optional<Owner> parse_owner(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    return Owner{json.at("host"), json.at("boot"), json.at("since"), json.at("program"),
                 json.at("name"), json.at("pid"),  json.at("start")};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

bool same_machine(const Owner& owner) { return owner.boot == first_line("/proc/sys/kernel/random/boot_id"); }

bool runs_here(const Owner& owner) {
  const bool there = ::kill(static_cast<pid_t>(owner.pid), 0) == 0 || errno == EPERM;
  return there && start_of(owner.pid) == owner.start;
}

std::string content(int descriptor) {
  std::string text(kOwnerBytes, '\0');
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

std::int64_t last_heartbeat(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return 0;
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

[[noreturn]] void refuse(const std::string& directory, const std::string& text) {
  const auto owner = parse_owner(text);
  TORCH_CHECK(owner, "another program saves to ", directory, " (it has locked ", directory, ".lock)");
  const bool this_process = same_machine(*owner) && owner->pid == ::getpid() && owner->start == start_of(::getpid());
  TORCH_CHECK(!this_process, "another save to ", directory, " is under way; wait() for it first");
  TORCH_CHECK(false, "another program saves to ", directory, ": ", owner->program, " on host ", owner->host,
              ", process ", owner->pid, ", since ", owner->since);
}

}  // namespace

std::string machine_name() { return host_name() + " " + first_line("/proc/sys/kernel/random/boot_id"); }

std::string unique_name() {
  static std::atomic<int> count{0};
  return host_name() + "-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

FolderLock::FolderLock(const std::string& directory, LockTimes times)
    : directory_(directory), path_(directory + ".lock"), owner_(own_text()) {
  try {
    while (!try_open() || !take_over(times)) release();
    const auto size = static_cast<ssize_t>(owner_.size());
    errno = ENOSPC;  // errno for a partial write
    const bool written =
        ::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, owner_.data(), owner_.size(), 0) == size;
    TORCH_CHECK(written, "cannot write ", path_, ": ", std::strerror(errno));
    run_heartbeat(times.heartbeat_interval);
  } catch (...) {
    if (descriptor_ >= 0 && is_owned()) ::unlink(path_.c_str());  // otherwise later saves would find it locked
    release();
    throw;
  }
}

// Returns false if the opened file is no longer at this path, because its owner has just removed it.
bool FolderLock::try_open() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  TORCH_CHECK(descriptor_ >= 0, "cannot create ", path_, ": ", std::strerror(errno));
  flocked_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (!flocked_ && errno == EWOULDBLOCK) refuse(directory_, content(descriptor_));
  struct stat mine {
  }, there{};
  TORCH_CHECK(::fstat(descriptor_, &mine) == 0 && S_ISREG(mine.st_mode), path_, " is not a regular file");
  return ::stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

// Returns false if the file was removed while waiting for its owner to become stale.
bool FolderLock::take_over(LockTimes times) {
  const std::string before = content(descriptor_);
  const auto owner = parse_owner(before);
  if (!owner) return true;
  if (same_machine(*owner)) {
    if (!flocked_ && runs_here(*owner)) refuse(directory_, before);
    return true;
  }
  const std::int64_t last = last_heartbeat(descriptor_);
  for (const auto begin = Clock::now(); Clock::now() - begin < times.stale_after;) {
    std::this_thread::sleep_for(times.stale_after / 30);
    const int again = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);  // NFS revalidates
    if (again < 0) return false;
    const bool alive = last_heartbeat(again) != last || content(again) != before;
    ::close(again);
    if (alive) refuse(directory_, before);
  }
  return true;
}

bool FolderLock::is_owned() const {
  const int there = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (there < 0) return false;
  const bool mine = content(there) == owner_;
  ::close(there);
  return mine;
}

void FolderLock::check_held() const {
  TORCH_CHECK(is_owned(), path_, " was lost while this program saved to ", directory_,
              ": the program was suspended for too long, or the file was removed");
}

void FolderLock::release() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void FolderLock::run_heartbeat(std::chrono::milliseconds heartbeat_interval) {
  heartbeat_thread_ = std::jthread([descriptor = descriptor_, heartbeat_interval](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, heartbeat_interval, [&] { return stop.stop_requested(); }))
      ::futimens(descriptor, nullptr);
  });
}

FolderLock::~FolderLock() {
  heartbeat_thread_ = {};
  if (is_owned()) ::unlink(path_.c_str());
  release();
}

}  // namespace dtensor::files

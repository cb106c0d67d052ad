// A process that can be started, waited for and killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace dtensor::faults {

class Child {
 public:
  // Standard output and error are written to the file `output`.
  Child(const std::vector<std::string>& words, const std::string& output);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();  // Kills it if it still runs.

  void kill(int signal) const;
  // Returns the exit status, or -signal. After `most` seconds, kills the process and returns `kHung`.
  int wait(std::chrono::seconds most);
  bool ended();
  pid_t session() const { return session_; }  // A separate session, which includes the processes that it starts.
  static constexpr int kHung = -1000;

 private:
  pid_t pid_ = -1, session_ = -1;
  int status_ = kHung;
};

}  // namespace dtensor::faults

// A process that is started, watched and killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace dtensor::faults {

class Child {
 public:
  // Its standard output and error go to `output`, a file.
  Child(const std::vector<std::string>& words, const std::string& output);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();  // killed where it still runs

  void kill(int signal) const;
  // Its exit status, or -signal; waits at most so long, then kills it and returns `kHung`.
  int wait(std::chrono::seconds most);
  bool ended();
  pid_t session() const { return session_; }  // of its own, that what it starts belongs to
  static constexpr int kHung = -1000;

 private:
  pid_t pid_ = -1, session_ = -1;
  int status_ = kHung;
};

}  // namespace dtensor::faults

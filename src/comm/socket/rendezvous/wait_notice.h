// When a rank says that it waits for others: after 5 s, and then ever more rarely.
#pragma once

#include <chrono>
#include <string>

namespace dtensor::sockets {

class WaitNotice {
 public:
  bool due() {
    if (waited() < next_) return false;
    next_ *= 2;
    return true;
  }
  std::string duration() const { return " (" + std::to_string(waited().count()) + " s so far)"; }

 private:
  std::chrono::seconds waited() const {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin_);
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::seconds next_{5};
};

}  // namespace dtensor::sockets

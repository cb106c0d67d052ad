// Around a wait for other ranks: gives up the lock of the language that called, where it set wait hooks.
#pragma once

namespace dtensor {

class ReleasedLock {
 public:
  ReleasedLock();
  ~ReleasedLock();
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  void* held_ = nullptr;
};

}  // namespace dtensor

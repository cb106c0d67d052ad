// A Work around a Work.
#include "comm/followed_work.h"

#include <exception>
#include <utility>

namespace dtensor {
namespace {

class FollowedWork final : public Work::Impl {
 public:
  FollowedWork(Work work, std::function<void()> then) : work_(std::move(work)), then_(std::move(then)) {}
  ~FollowedWork() override {
    try {
      wait();
    } catch (...) {  // the next call throws the same
    }
  }
  void wait() override {
    if (failure_) std::rethrow_exception(failure_);
    const auto then = std::exchange(then_, nullptr);
    work_.wait();
    if (then) then();
  }
  // Who polls never waits, so what follows runs here.
  bool done() override {
    if (!work_.done()) return false;
    try {
      wait();
    } catch (...) {
      failure_ = std::current_exception();
    }
    return true;
  }
  bool failed() const { return failure_ != nullptr; }

 private:
  Work work_;
  std::function<void()> then_;
  std::exception_ptr failure_;  // met by who polled, for who waits
};

}  // namespace

Work followed(Work work, std::function<void()> then) {
  auto impl = std::make_shared<FollowedWork>(std::move(work), std::move(then));
  return impl->done() && !impl->failed() ? Work() : Work(std::move(impl));
}

}  // namespace dtensor

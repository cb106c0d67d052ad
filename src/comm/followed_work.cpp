// A Work around a Work.
#include "comm/followed_work.h"

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
    const auto then = std::exchange(then_, nullptr);
    work_.wait();
    if (then) then();
  }
  // Who polls never waits, so what follows runs here.
  bool done() override {
    if (!work_.done()) return false;
    wait();
    return true;
  }

 private:
  Work work_;
  std::function<void()> then_;
};

}  // namespace

Work followed(Work work, std::function<void()> then) {
  auto impl = std::make_shared<FollowedWork>(std::move(work), std::move(then));
  return impl->done() ? Work() : Work(std::move(impl));
}

}  // namespace dtensor

// A Work that runs a continuation after another Work.
#include "comm/composite/chained_work.h"

#include <exception>
#include <utility>

#include "comm/record/rank_record.h"

namespace dtensor {
namespace {

class ContinuationWork final : public Work::Impl {
 public:
  ContinuationWork(Work work, std::function<void()> then, std::shared_ptr<RankRecord> record)
      : work_(std::move(work)), continuation_(std::move(then)), record_(std::move(record)) {}
  ~ContinuationWork() override {
    try {
      finish();
    } catch (...) {
      const bool unwinding = std::uncaught_exceptions() > 0;  // the current error reaches the caller
      if (!reported_ && !unwinding) record_->mark_unreported_failure();
    }
  }
  void wait() override {
    try {
      finish();
    } catch (...) {
      reported_ = true;
      throw;
    }
  }
  // A polling caller never waits, so the continuation runs here.
  bool done() override {
    if (!work_.done()) return false;
    try {
      finish();
    } catch (...) {
      failure_ = std::current_exception();
    }
    return true;
  }
  bool failed() const { return failure_ != nullptr; }

 private:
  void finish() {
    if (failure_) std::rethrow_exception(failure_);
    const auto then = std::exchange(continuation_, nullptr);
    work_.wait();
    if (then) then();
  }

  Work work_;
  std::function<void()> continuation_;
  std::shared_ptr<RankRecord> record_;
  std::exception_ptr failure_;  // caught in done(), rethrown by wait()
  bool reported_ = false;       // wait() has thrown
};

}  // namespace

Work with_continuation(Work work, std::function<void()> then, std::shared_ptr<RankRecord> record) {
  auto impl = std::make_shared<ContinuationWork>(std::move(work), std::move(then), std::move(record));
  return impl->done() && !impl->failed() ? Work() : Work(std::move(impl));
}

}  // namespace dtensor

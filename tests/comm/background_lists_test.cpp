// Lists on a backend with background collectives: packed, and unpacked on completion.
#include "parallel_fsdp/delayed.h"
#include "support/idle_backend.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(BackgroundLists, AreUnpackedWhenTheirWorkIsDropped) {
  run_local(2, [](Communicator world) {
    const Communicator late = delayed(world);
    const Tensors gathered = {at::zeros({2}), at::zeros({3}), at::zeros({2}), at::zeros({3})};
    const Tensors sums = {at::ones({2}), at::ones({5})}, parts = {at::zeros({2}), at::zeros({3})};
    late.all_gather_list(gathered, {at::ones({2}), at::ones({3})});
    late.all_reduce_list(sums, ReduceOp::sum);
    late.reduce_scatter_list(parts, {at::ones({2}), at::ones({3}), at::ones({2}), at::ones({3})}, ReduceOp::sum);
    for (const auto& t : gathered) EXPECT_TRUE(t.eq(1).all().item<bool>());
    for (const auto& t : sums) EXPECT_TRUE(t.eq(2).all().item<bool>());
    for (const auto& t : parts) EXPECT_TRUE(t.eq(2).all().item<bool>());
  });
}

// Work that completes by itself after a few calls of done().
class SoonWork final : public Work::Impl {
 public:
  void wait() override {}
  bool done() override { return --looks_ <= 0; }

 private:
  int looks_ = 3;
};

class SoonBackend final : public NoopBackend {
 public:
  explicit SoonBackend(Communicator inner) : NoopBackend(inner.rank(), inner.ranks()), inner_(std::move(inner)) {}
  bool asynchronous() const override { return true; }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    inner_.all_reduce(tensor, call.op).wait();
    return Work(std::make_shared<SoonWork>());
  }

 private:
  Communicator inner_;
};

TEST(BackgroundLists, AreDoneWhenTheirCollectiveIsDone) {
  run_local(2, [](Communicator world) {
    const Communicator soon(std::make_shared<SoonBackend>(world));
    const Tensors sums = {at::ones({2}), at::ones({5})};
    const Work work = soon.all_reduce_list(sums, ReduceOp::sum);
    int looks = 1;
    while (!work.done() && looks < 10) ++looks;
    EXPECT_LT(looks, 10);
    for (const auto& t : sums) EXPECT_TRUE(t.eq(2).all().item<bool>());
  });
}

}  // namespace
}  // namespace dtensor::test

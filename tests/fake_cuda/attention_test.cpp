// Attention over a split sequence on simulated devices: flash kernels on blocks of keys that pass between the ranks.
#include <ATen/record_function.h>

#include <atomic>
#include <optional>

#include "attention/cases.h"
#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

std::atomic<int> flash_calls{0}, host_reads{0};

// Counts operators of all threads during its lifetime.
class OperatorCounts {
 public:
  OperatorCounts() {
    flash_calls = host_reads = 0;
    const auto count = [](const at::RecordFunction& fn) {
      const std::string name = fn.name(), flash = "aten::_scaled_dot_product_flash_attention";
      flash_calls += name == flash || name == flash + "_backward";
      host_reads += name == "aten::_local_scalar_dense";
      return std::unique_ptr<at::ObserverContext>();
    };
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounts() { at::removeCallback(handle_); }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

 private:
  at::CallbackHandle handle_;
};

Case ring_case(int ranks, at::ScalarType dtype) {
  Case c;
  c.mesh = {ranks};
  c.heads = 4, c.groups = 2;
  c.queries = c.keys = 8 * ranks;
  c.features = c.values = 8;
  c.dtype = dtype;
  c.options.causal = true;
  c.by_aten = false;
  c.strategy = AttentionStrategy::ring;
  return c;
}

// Of a causal mask over contiguous parts, rank r sees r + 1 blocks. Each is one flash call per pass.
TEST(CudaAttention, TheRingRunsOneFlashKernelPerBlockWithoutHostReads) {
  for (const int ranks : {2, 4}) {
    const Case c = ring_case(ranks, at::kBFloat16);
    const auto t = tensors_of(c);
    expect_none(errors_of_ranks(ranks, {}, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCUDA, {ranks}, {"sequence"});
      const auto in = distributed(c, t, mesh);
      const at::Tensor grad = distribute_tensor(t.grad, mesh, {Shard(2)});
      const AttentionStrategyScope scope(c.strategy);
      attend(c, in, {});
      world.barrier();
      std::optional<OperatorCounts> counts;
      if (world.rank() == 0) counts.emplace();
      world.barrier();
      const CommDebugMode comms;
      torch::autograd::grad({attend(c, in, {})}, in, {grad});
      for (const auto& [key, count] : comms.counts()) {
        EXPECT_TRUE(key.kind == "send" || key.kind == "recv") << key.kind;
      }
      world.barrier();
      EXPECT_EQ(flash_calls, ranks * (ranks + 1));
      EXPECT_EQ(host_reads, 0);
      world.barrier();
    }));
  }
}

// Without a flash kernel, keys are gathered.
TEST(CudaAttention, OtherTypesGather) {
  const Case c = ring_case(2, at::kFloat);
  expect_none(errors_of_ranks(2, {}, [&](const Communicator& world) {
    const OperatorCounts counts;
    check_case(c, init_device_mesh(world, at::kCUDA, {2}, {"sequence"}));
    EXPECT_EQ(flash_calls, 0);
  }));
}

}  // namespace
}  // namespace dtensor::test::fake_cuda

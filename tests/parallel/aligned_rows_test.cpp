// Products with rows of a multiple of 16 bytes: results are those of unaligned rows, and no product has unaligned ones.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"
#include "internal/kernels/aligned_rows.h"
#include "support/gpu_kernels.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

// Sizes of the results of at::mm in this scope, on this thread and the threads of autograd.
class Products {
 public:
  Products() {
    const auto start = [](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); };
    seen().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(start, record).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  // The number of results with a dimension of this size.
  static std::int64_t with_size(std::int64_t size) {
    const std::lock_guard<std::mutex> lock(mutex());
    return std::count_if(seen().begin(), seen().end(),
                         [&](const auto& sizes) { return std::count(sizes.begin(), sizes.end(), size) > 0; });
  }

 private:
  static std::vector<std::vector<std::int64_t>>& seen() {
    static std::vector<std::vector<std::int64_t>> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static void record(const at::RecordFunction& call, at::ObserverContext*) {
    if (std::string_view(call.name()) != "aten::mm") return;
    const std::lock_guard<std::mutex> lock(mutex());
    const auto& result = call.outputs().front().toTensor();
    if (!is_dtensor(result) && !result.is_meta()) seen().push_back(result.sizes().vec());
  }
  at::CallbackHandle handle_ = {};
};

struct LinearResult {
  at::Tensor loss, hidden, weight;
};

// The loss and the gradients of bfloat16 operands. `where`: the placement of the weight on each axis.
LinearResult run_linear(const DeviceMesh& mesh, const Placement& where, std::int64_t classes, std::int64_t chunk) {
  test::Draw draw(34);
  const Placements replicated(static_cast<std::size_t>(mesh.ndim()));
  const at::Tensor h = draw.normal({2, 5, 24}, at::kBFloat16), w = draw.normal({classes, 24}, at::kBFloat16);
  const at::Tensor hidden = distribute_tensor(h, mesh, replicated).requires_grad_();
  const at::Tensor weight = distribute_tensor(w, mesh, {where}).requires_grad_();
  const at::Tensor targets = draw.integers({2, 5}, classes).masked_fill(draw.integers({2, 5}, 4).eq(0), -100);
  const at::Tensor loss = linear_cross_entropy(hidden, weight, targets, {.label_smoothing = 0.1}, chunk);
  loss.backward();
  return {DTensor(loss.detach()).full_tensor(), DTensor(hidden.grad()).full_tensor(),
          DTensor(weight.grad()).full_tensor()};
}

TEST(LinearCrossEntropy, AlignedRowsChangeNoResult) {
  for (const int ranks : {1, 3}) {
    for (const std::int64_t classes : {33, 50, 64, 129}) {
      for (const std::int64_t chunk : {0, 4}) {
        for (const Placement& where : {Placement(Replicate()), Placement(Shard(0))}) {
          const auto run = [&](std::vector<LinearResult>& found) {
            found.resize(static_cast<std::size_t>(ranks));
            test::on_mesh({ranks}, [&](const DeviceMesh& mesh) {
              found[static_cast<std::size_t>(mesh.coordinate()->front())] = run_linear(mesh, where, classes, chunk);
            });
          };
          std::vector<LinearResult> expected, found;
          run(expected);
          {
            const test::GpuKernelsOnCpu aligned;
            run(found);
          }
          const auto what = c10::str(ranks, " ranks, ", classes, " classes, chunk ", chunk);
          for (std::size_t r = 0; r < found.size(); ++r) {
            test::expect_close(found[r].loss, expected[r].loss, what, 1e-6);
            EXPECT_EQ(found[r].weight.size(0), classes);
            EXPECT_TRUE(at::allclose(found[r].hidden.to(at::kFloat), expected[r].hidden.to(at::kFloat), 8e-3, 1e-4))
                << what;
            EXPECT_TRUE(at::allclose(found[r].weight.to(at::kFloat), expected[r].weight.to(at::kFloat), 8e-3, 1e-4))
                << what;
          }
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, AllProductsHaveAlignedRows) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const test::GpuKernelsOnCpu aligned;
    for (const std::int64_t chunk : {0, 4}) {
      const Products products;
      run_linear(mesh, Replicate(), 129, chunk);
      EXPECT_EQ(products.with_size(129), 0);
      // Logits and the gradient of the weight, which reads that of the logits; for 3 chunks, logits twice.
      EXPECT_EQ(products.with_size(192), chunk == 0 ? 2 : 9);
    }
    const Products products;
    run_linear(mesh, Replicate(), 136, 0);  // A multiple of 16 bytes.
    EXPECT_EQ(products.with_size(136), 2);
  });
}

TEST(AlignedRows, AreAMultipleOf64WhereRowsAreNoMultipleOf16Bytes) {
  EXPECT_EQ(aligned_width(50257, at::kBFloat16, at::kCUDA), 50304);
  EXPECT_EQ(aligned_width(50264, at::kBFloat16, at::kCUDA), 50264);
  EXPECT_EQ(aligned_width(50257, at::kHalf, at::kCUDA), 50304);
  EXPECT_EQ(aligned_width(50257, at::kFloat, at::kCUDA), 50257);
  EXPECT_EQ(aligned_width(50257, at::kBFloat16, at::kCPU), 50257);
}

// A layer with an odd number of outputs, in bfloat16: its result and gradients on `placement` of the weight.
std::vector<at::Tensor> run_layer(const DeviceMesh& mesh, const Placement& where, bool biased) {
  test::Draw draw(38);
  const auto leaf = [&](const test::Shape& sizes, const Placement& p) {
    return distribute_tensor(draw.normal(sizes, at::kBFloat16), mesh, {p}).requires_grad_();
  };
  const at::Tensor x = leaf({2, 5, 24}, Replicate()), w = leaf({131, 24}, where), b = leaf({131}, where);
  const at::Tensor y = at::linear(x, w, biased ? std::optional(b) : std::nullopt);
  EXPECT_TRUE(DTensor(y.detach()).to_local().is_contiguous());
  (y * distribute_tensor(draw.normal({2, 5, 131}, at::kBFloat16), mesh, {Replicate()})).sum().backward();
  std::vector<at::Tensor> result;
  for (const at::Tensor& t : {y.detach(), x.grad(), w.grad(), b.grad()}) {
    if (t.defined()) result.push_back(DTensor(t).full_tensor().to(at::kFloat));
  }
  return result;
}

TEST(Linear, AlignedRowsChangeNoResult) {
  for (const int ranks : {1, 2}) {
    test::on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      for (const bool biased : {false, true}) {
        for (const Placement& where : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(0).as_storage())}) {
          if (where.is_storage() && biased) continue;
          const auto expected = run_layer(mesh, where, biased);
          mesh.communicator().barrier();
          test::GpuKernelsOnCpu::set(true);
          const auto found = run_layer(mesh, where, biased);
          mesh.communicator().barrier();
          test::GpuKernelsOnCpu::set(false);
          mesh.communicator().barrier();
          ASSERT_EQ(found.size(), expected.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(at::allclose(found[i], expected[i], 8e-3, 1e-3)) << i << to_string(Placements{where}) << biased;
          }
        }
      }
    });
  }
}

TEST(Linear, AllProductsHaveAlignedRows) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const test::GpuKernelsOnCpu aligned;
    const Products products;
    run_layer(mesh, Replicate(), false);
    EXPECT_EQ(products.with_size(192), 2);  // The result and the gradient of the weight.
    EXPECT_EQ(products.with_size(24), 2);
  });
}

}  // namespace

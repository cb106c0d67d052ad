// Each name in DTENSOR_DISABLE_KERNELS turns off the kernels of its area, and no others.
#include "dtensor/inspect.h"
#include "dtensor/loss.h"
#include "dtensor/nn.h"
#include "internal/kernels/aligned_rows.h"
#include "internal/kernels/gpu_kernels.h"
#include "other_device/step.h"
#include "parallel/loss/row_kernels.h"
#include "support/errors.h"
#include "support/norm_rows.h"

namespace dtensor::test {
namespace {

std::atomic<int> loss_calls;

void counted_sums(const loss_rows::Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) {
  if (!takes_gpu_kernel(GpuKernel::loss, fake::kDevice)) return loss_rows::sums_of_aten(rows, top, finds_top, sums);
  ++loss_calls;
  loss_rows::sums_loop(rows, top, finds_top, sums);
}

// The CPU's loops are kernels of the fake device, whose memory is the host's. They count their calls.
struct CountedKernels {
  CountedNormKernels norms{c10::DispatchKey::PrivateUse1};
  torch::Library loss{torch::Library::IMPL, "dtensor", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  CountedKernels() {
    loss_rows::register_kernels<loss_rows::largest_loop, counted_sums, loss_rows::gradient_loop>(loss);
  }
  ~CountedKernels() { set_takes_gpu_kernels(fake::kDevice, true); }
};

struct Used {
  bool aligned_rows, layer_norm, loss;
  bool operator==(const Used&) const = default;
};

// Kernels that a norm, a head of 50 classes and a loss call; `results` gets the values.
Used run_kernels(std::vector<at::Tensor>& results) {
  CountedNormKernels::forward_calls = loss_calls = 0;
  on_device_mesh({1}, [&](const DeviceMesh& mesh) {
    clear_cache();
    Draw draw(61);
    const auto put = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
    const at::Tensor x = put(draw.normal({6, 32}).to(at::kBFloat16)), weight = put(draw.normal({32}).to(at::kFloat));
    const at::Tensor y = nn::layer_norm(x, 32, weight, {}, 1e-5);
    const at::Tensor head = put(draw.normal({50, 32}).to(at::kBFloat16));
    const at::Tensor loss = cross_entropy(at::linear(y, head), put(at::arange(6)));
    results = {host_value(y), host_value(loss)};
  });
  return {aligned_width(50, at::kBFloat16, fake::kDevice) == 64, CountedNormKernels::forward_calls > 0, loss_calls > 0};
}

TEST(OtherDevice, EachKernelIsDisabledByItsName) {
  fake::start();
  const CountedKernels kernels;
  const std::pair<const char*, Used> cases[] = {{"", {true, true, true}},
                                                {"aligned_rows", {false, true, true}},
                                                {"layer_norm", {true, false, true}},
                                                {"loss", {true, true, false}},
                                                {"loss,layer_norm", {true, false, false}}};
  std::vector<at::Tensor> expected, found;
  for (const auto& [names, used] : cases) {
    set_takes_gpu_kernels(fake::kDevice, true);
    disable_gpu_kernels(names);
    EXPECT_EQ(run_kernels(found), used) << names;
    if (expected.empty()) expected = found;
    EXPECT_TRUE(at::allclose(found[0].to(at::kFloat), expected[0].to(at::kFloat), 1e-2, 1e-2)) << names;
    EXPECT_TRUE(at::allclose(found[1], expected[1], 1e-2, 1e-2)) << names;
  }
}

TEST(OtherDevice, UnknownKernelIsAnError) {
  const CountedKernels kernels;  // Enables the kernels before the error again.
  EXPECT_EQ(error_of([] { disable_gpu_kernels("loss,nrom"); }),
            "DTENSOR_DISABLE_KERNELS: expected names of aligned_rows, layer_norm, loss, grouped_experts, swiglu, "
            "separated by "
            "commas, got nrom");
}

}  // namespace
}  // namespace dtensor::test

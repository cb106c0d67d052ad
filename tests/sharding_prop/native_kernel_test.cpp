// Meta kernels that another language has registered over ATen's, as importing torch in Python does.
#include "sharding_prop/operators/native_kernel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace dtensor {
namespace {

void foreign(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, "foreign kernel of ", op.operator_name());
}

c10::RegistrationHandleRAII cover(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().registerImpl({name, overload}, c10::DispatchKey::Meta,
                                                   c10::KernelFunction::makeFromBoxedFunction<&foreign>(), std::nullopt,
                                                   nullptr, "test");
}

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}

TEST(NativeKernel, RunsInsteadOfTheForeignKernel) {
  const auto mul = cover("aten::mul", "Tensor");
  const auto a = meta({3, 1}), b = meta({2});
  EXPECT_THROW(at::mul(a, b), c10::Error);
  const NativeMetaKernels native;
  EXPECT_EQ(at::mul(a, b).sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(at::ones({2}).mul(3).sum().item<float>(), 6);  // Tensors with data are unaffected.
}

TEST(NativeKernel, RunsWithinCompositeKernels) {
  const auto select = cover("aten::select", "int");  // Called by the kernels of unbind and of indexing.
  const auto a = meta({3, 4});
  const NativeMetaKernels native;
  EXPECT_EQ(a.unbind(0).at(1).sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(a.select(1, 2).sizes(), at::IntArrayRef({3}));  // A kernel with SymInt arguments.
}

TEST(NativeKernel, OperatorWithoutMetaKernelIsAnError) {
  const auto nonzero = cover("aten::nonzero", "");  // ATen has no meta kernel for nonzero.
  const NativeMetaKernels native;
  EXPECT_THROW(
      {
        try {
          at::nonzero(meta({3}));
        } catch (const c10::Error& error) {
          EXPECT_NE(error.msg().find("aten::nonzero: no fake impl or Meta kernel registered"), std::string::npos);
          throw;
        }
      },
      c10::NotImplementedError);
}

TEST(NativeKernel, ScalarArgumentsArePassedUnchanged) {
  const NativeMetaKernels native;
  EXPECT_EQ(native_kernel(*c10::Dispatcher::singleton().findSchema({"aten::nonzero", ""}), c10::DispatchKey::Meta),
            nullptr);
  EXPECT_EQ((meta({2}, at::kInt) * 2.5).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace dtensor

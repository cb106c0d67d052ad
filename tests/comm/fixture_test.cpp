// The fixture for thread ranks, and the sample tensors.
#include "comm/fixture.h"

namespace dtensor::test {

at::Tensor sample(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t seed) {
  std::int64_t n = 1;
  for (auto s : sizes) n *= s;
  at::Tensor values = at::remainder(at::arange(n, at::kLong) * 7 + seed * 3, 5) + 1;
  return values.to(dtype).reshape(sizes);
}

at::Tensor strided_like(const at::Tensor& values, int kind) {
  at::Tensor out;
  if (kind == 1 && values.dim() >= 2) {
    out = at::empty(values.transpose(0, -1).sizes(), values.options()).transpose(0, -1);
  } else if (kind == 2 && values.dim() >= 1) {
    auto sizes = values.sizes().vec();
    sizes.back() += 3;
    out = at::empty(sizes, values.options()).narrow(-1, 2, values.size(-1));
  } else if (kind == 3 && values.dim() >= 1) {
    auto sizes = values.sizes().vec();
    sizes[0] = sizes[0] * 2 + 1;
    out = at::empty(sizes, values.options()).slice(0, 1, 1 + 2 * values.size(0), 2);
  } else {
    out = at::empty(values.sizes(), values.options());
  }
  return out.copy_(values);
}

}  // namespace dtensor::test

// Random operands of the kernels of layer norm and RMS norm (row_norm/kernels.h).
#pragma once

#include "row_norm/kernels.h"
#include "support/ranks.h"

namespace dtensor::test {

struct NormCase {
  row_norm::Saved saved;  // mean and rstd are not computed yet
  at::Tensor bias, grad;
};

inline NormCase draw_norm(Draw& draw, at::ScalarType type) {
  const auto rows = draw.coin() ? draw.integer(0, 5) : draw.integer(120, 300);
  const auto n = draw.coin() ? draw.integer(1, 40) : draw.integer(2000, 2100);
  NormCase c;
  c.saved.x = (draw.normal({rows, n}) * 2 + 1).to(type);
  if (draw.coin()) c.saved.mean = at::empty({rows}, at::kFloat);  // Else RMS norm.
  c.saved.rstd = at::empty({rows}, at::kFloat);
  if (draw.coin()) c.saved.weight = draw.normal({n}, at::kFloat);
  if (draw.coin()) c.bias = draw.normal({n}, at::kFloat);
  c.grad = draw.normal({rows, n}).to(type);
  return c;
}

}  // namespace dtensor::test

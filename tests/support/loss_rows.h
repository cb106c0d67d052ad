// Random operands of the kernels of cross entropy (parallel/loss/row_kernels.h).
#pragma once

#include <ATen/OpMathType.h>

#include "parallel/loss/row_kernels.h"
#include "support/ranks.h"

namespace dtensor::test {

struct RowCase {
  loss_rows::Rows rows;
  at::Tensor exact;  // the rank's logits, float64
};

// Rows of a rank with some of the classes, some padding and some targets on other ranks.
inline RowCase draw_rows(Draw& draw, at::ScalarType type) {
  const auto tokens = draw.integer(0, 5), classes = draw.coin() ? draw.integer(0, 40) : draw.integer(4000, 9000);
  const auto width = classes + draw.integer(0, 9);
  RowCase c;
  c.rows.values = (draw.normal({tokens, width}) * 4).to(type);
  c.rows.classes = classes;
  c.rows.first = draw.integer(0, 3);
  c.rows.count = c.rows.first + classes + draw.integer(1, 3);
  c.rows.targets = draw.integers({tokens}, c.rows.count);
  c.rows.smooths = draw.coin();
  if (draw.coin()) c.rows.weight = draw.normal({classes}).abs().to(at::toOpMathType(type));
  c.exact = c.rows.values.narrow(1, 0, classes).to(at::kDouble);
  return c;
}

}  // namespace dtensor::test

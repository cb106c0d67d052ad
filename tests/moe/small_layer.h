// A small layer whose values do not depend on the ranks, and a record of a rank's collectives.
#pragma once

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/moe.h"
#include "support/ranks.h"

namespace dtensor::test {

inline MoeOptions small_options(at::ScalarType dtype = at::kDouble) {
  MoeOptions o;
  o.hidden = 8;
  o.ffn = 8;
  o.router.experts = 4;
  o.router.top_k = 2;
  o.router.normalize = true;
  o.tensor = dtype;
  return o;
}

inline void fill(nn::Module& layer, std::uint64_t seed) {
  Draw draw(seed);
  for (const auto& [name, p] : layer.named_parameters()) {
    *p = draw.normal(p->sizes().vec(), p->scalar_type()).mul_(0.5).requires_grad_();
  }
}

// Returns the collectives of this rank, in order.
inline std::vector<std::string> collectives_of(const std::function<void()>& fn) {
  std::vector<std::string> names;
  const EventListener listener([&](const Event& event) {
    if (event.kind == Event::Kind::collective) names.push_back(event.name + " " + event.axis);
  });
  fn();
  return names;
}

}  // namespace dtensor::test

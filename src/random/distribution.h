// A distribution as a variant. Fill functions take it together with a region and a key.
#pragma once

#include <variant>

#include "random/distributions.h"

namespace dtensor {

using Distribution =
    std::variant<dist::Uniform<float>, dist::Uniform<double>, dist::Normal<float>, dist::Normal<double>,
                 dist::LogNormal<float>, dist::LogNormal<double>, dist::Bernoulli, dist::UnitWord, dist::SmallInteger,
                 dist::Integer, dist::Exponential, dist::Geometric, dist::Cauchy>;

}  // namespace dtensor

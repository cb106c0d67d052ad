// Checks the arguments of random fills and selects the kernel by device.
#include "random/fill.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/BFloat16-math.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "internal/simulated.h"

namespace dtensor {
namespace {

std::array<std::atomic<FillKernel>, static_cast<std::size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)> kernels;

bool is_double(const at::Tensor& t) { return c10::toRealValueType(t.scalar_type()) == at::kDouble; }

void check_floating(const at::Tensor& t, const char* what) {
  TORCH_CHECK(t.is_floating_point() || t.is_complex(), what, ": expected a floating point tensor, got ",
              t.scalar_type());
}

// A complex tensor as real pairs along an additional, unsharded dimension.
std::pair<at::Tensor, GlobalRegion> as_real(const at::Tensor& local, const GlobalRegion& region) {
  if (!local.is_complex()) {
    return {local, region};
  }
  GlobalRegion pairs = region;
  pairs.sizes.push_back(2);
  pairs.segments.push_back({Segment{0, 2}});
  return {at::view_as_real(local), std::move(pairs)};
}

// As in ATen: the dtype represents both ends, and their distance is at most its largest number.
void check_interval(at::ScalarType dtype, double from, double to) {
  TORCH_CHECK(from <= to, "uniform_ expects from <= to, got from = ", from, " and to = ", to);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "uniform_", [&] {
    const auto largest = static_cast<double>(std::numeric_limits<scalar_t>::max());
    TORCH_CHECK(std::abs(from) <= largest, "uniform_: from = ", from, " is out of range for ", dtype);
    TORCH_CHECK(std::abs(to) <= largest, "uniform_: to = ", to, " is out of range for ", dtype);
    TORCH_CHECK(to - from <= largest, "uniform_ expects to - from <= ", largest, " for ", dtype, ", got from = ", from,
                " and to = ", to);
  });
}

// The largest value of the dtype below `to`, or `from` if the interval is empty.
double largest_below(at::ScalarType dtype, double from, double to) {
  double limit = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "uniform_", [&] {
    const auto rounded = static_cast<scalar_t>(to);
    const bool below = static_cast<double>(rounded) < to || from == to;
    limit = static_cast<double>(below ? rounded : std::nextafter(rounded, static_cast<scalar_t>(from)));
  });
  return limit;
}

// The largest integer that random_() returns.
std::int64_t largest_integer(at::ScalarType dtype) {
  std::int64_t largest = 0;
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, dtype, "random_", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    if constexpr (std::is_integral_v<scalar_t>) {
      largest = static_cast<std::int64_t>(Limits::max());
    } else {
      largest = std::int64_t{1} << Limits::digits;
    }
  });
  return largest;
}

void check_holds(at::ScalarType dtype, std::int64_t value, const char* what) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, dtype, "random_", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    bool ok = false;
    if constexpr (std::is_integral_v<scalar_t>) {
      ok = value >= static_cast<std::int64_t>(Limits::lowest()) && value <= static_cast<std::int64_t>(Limits::max());
    } else {
      ok = std::abs(static_cast<double>(value)) <= static_cast<double>(Limits::max());
    }
    TORCH_CHECK(ok, "random_: ", what, " = ", value, " is out of range for ", dtype);
  });
}

// The smallest and the largest integer in [from, last] that the dtype does not round out of the interval.
std::pair<std::int64_t, std::int64_t> rounded_within(at::ScalarType dtype, std::int64_t from, std::int64_t last) {
  if (!c10::isFloatingType(dtype)) return {from, last};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "random_", [&] {
    __extension__ using Wide = __int128;  // a rounded integer may exceed 64 bits
    constexpr auto kInfinity = std::numeric_limits<scalar_t>::infinity();
    const auto low = static_cast<scalar_t>(from), high = static_cast<scalar_t>(last);
    if (static_cast<Wide>(low) < from) from = static_cast<std::int64_t>(std::nextafter(low, kInfinity));
    if (static_cast<Wide>(high) > last) last = static_cast<std::int64_t>(std::nextafter(high, -kInfinity));
  });
  return {from, last};
}

void fill_range(const at::Tensor& local, const GlobalRegion& region, RandomKey key, std::int64_t from,
                std::int64_t last) {
  // 0 means all 2^64 values.
  const auto range = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(from) + 1;
  if (range != 0 && range <= dist::SmallInteger::kMaxRange) {
    return fill(local, region, key, dist::SmallInteger{from, range});
  }
  fill(local, region, key, dist::Integer{from, range});
}

// Returns false if the device has no kernel.
bool fill_dense(const at::Tensor& dense, const GlobalRegion& region, RandomKey key, const Distribution& distribution) {
  const auto kernel = dense.is_cpu() ? &fill_cpu : kernels[static_cast<std::size_t>(dense.device().type())].load();
  return kernel != nullptr && kernel(dense, region, key, distribution);
}

}  // namespace

void fill_uniform(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double from, double to) {
  check_floating(local, "uniform_");
  const auto [real, real_region] = as_real(local, region);
  check_interval(real.scalar_type(), from, to);
  const auto limit = largest_below(real.scalar_type(), from, to);
  if (is_double(real)) {
    return fill(real, real_region, key, dist::Uniform<double>{from, to - from, limit});
  }
  const auto low = static_cast<float>(from);
  fill(real, real_region, key, dist::Uniform<float>{low, static_cast<float>(to) - low, static_cast<float>(limit)});
}

void fill_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean, double std) {
  check_floating(local, "normal_");
  TORCH_CHECK(std >= 0, "normal_ expects std >= 0, got std = ", std);
  const auto [real, real_region] = as_real(local, region);
  if (local.is_complex()) std /= std::sqrt(2.0);
  if (is_double(real)) {
    return fill(real, real_region, key, dist::Normal<double>{mean, std});
  }
  fill(real, real_region, key, dist::Normal<float>{static_cast<float>(mean), static_cast<float>(std)});
}

void fill_log_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean, double std) {
  TORCH_CHECK(local.is_floating_point(), "log_normal_: expected a floating point tensor, got ", local.scalar_type());
  TORCH_CHECK(std > 0, "log_normal_ expects std > 0, got std = ", std);
  if (is_double(local)) {
    return fill(local, region, key, dist::LogNormal<double>{{mean, std}});
  }
  fill(local, region, key, dist::LogNormal<float>{{static_cast<float>(mean), static_cast<float>(std)}});
}

void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "bernoulli_ expects p in [0, 1], got p = ", p);
  fill(local, region, key, dist::Bernoulli{p});
}

void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const at::Tensor& p) {
  TORCH_CHECK(p.is_floating_point(), "bernoulli_: p must be a floating point tensor, got ", p.scalar_type());
  const auto unit = at::empty(local.sizes(), local.options().dtype(at::kDouble));
  fill(unit, region, key, dist::UnitWord{});
  local.copy_(unit.lt(p.to(at::kDouble)));
}

void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key, std::int64_t from,
                   std::optional<std::int64_t> to) {
  const auto dtype = local.scalar_type();
  TORCH_CHECK(!to || from < *to, "random_ expects from < to, got from = ", from, " and to = ", *to);
  const auto last = to ? *to - 1 : largest_integer(dtype);
  TORCH_CHECK(from <= last, "random_ expects from <= ", last, " for ", dtype, ", got from = ", from);
  check_holds(dtype, from, "from");
  check_holds(dtype, last, "to - 1");
  const auto [first, end] = rounded_within(dtype, from, last);
  TORCH_CHECK(first <= end, "random_: ", dtype, " represents no integer from ", from, " to ", last);
  fill_range(local, region, key, first, end);
}

void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key) {
  fill_range(local, region, key, 0, largest_integer(local.scalar_type()));
}

void fill_exponential(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double lambda) {
  TORCH_CHECK(local.is_floating_point(), "exponential_: expected a floating point tensor, got ", local.scalar_type());
  TORCH_CHECK(lambda > 0, "exponential_ expects lambda > 0, got lambda = ", lambda);
  fill(local, region, key, dist::Exponential{lambda});
}

void fill_geometric(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p) {
  TORCH_CHECK(p > 0 && p < 1, "geometric_ expects p in (0, 1), got p = ", p);
  fill(local, region, key, dist::Geometric{std::log1p(-p)});
}

void fill_cauchy(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double median, double sigma) {
  TORCH_CHECK(local.is_floating_point(), "cauchy_: expected a floating point tensor, got ", local.scalar_type());
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0, got sigma = ", sigma);
  fill(local, region, key, dist::Cauchy{median, sigma});
}

at::Tensor random_permutation(std::int64_t n, RandomKey key, at::TensorOptions options) {
  TORCH_CHECK(n >= 0, "randperm expects n >= 0, got ", n);
  auto permutation = at::arange(n, at::TensorOptions(at::kLong));
  auto* p = permutation.mutable_data_ptr<std::int64_t>();
  for (auto i = n - 1; i > 0; --i) {  // Fisher-Yates shuffle; step i uses its own block
    const auto word = philox::word64(philox::block(key, static_cast<std::uint64_t>(i)), 0);
    std::swap(p[i], p[dist::multiply_high(word, static_cast<std::uint64_t>(i) + 1)]);
  }
  return permutation.to(options.has_dtype() ? options : options.dtype(at::kLong));
}

void register_fill_kernel(c10::DeviceType device, FillKernel kernel) {
  kernels[static_cast<std::size_t>(device)].store(kernel);
}

void fill(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution) {
  const auto sizes = region.local_sizes();
  TORCH_CHECK(local.sizes().equals(sizes), "expected a local tensor of sizes ", at::IntArrayRef(sizes),
              " for its region, got ", local.sizes());
  if (local.numel() == 0 || is_simulated(local)) return;
  const auto dense = local.is_contiguous() ? local : at::empty(local.sizes(), local.options());
  if (!fill_dense(dense, region, key, distribution)) {
    const auto on_cpu = at::empty(local.sizes(), local.options().device(at::kCPU));
    fill_cpu(on_cpu, region, key, distribution);
    dense.copy_(on_cpu);
  }
  if (!local.is_contiguous()) local.copy_(dense);
}

}  // namespace dtensor

// The generator against the known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
#include "random/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "random/distributions.h"

namespace dtensor {
namespace {

std::array<std::uint32_t, 4> words(const philox::Words& w) { return {w.w[0], w.w[1], w.w[2], w.w[3]}; }
using Four = std::array<std::uint32_t, 4>;

TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(words(philox::generate({{0, 0, 0, 0}}, 0, 0)), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(philox::generate({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U)),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox::generate({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0)),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BlockUsesEveryBitOfSeedOperatorAndIndex) {
  std::set<Four> seen{words(philox::block({0, 0}, 0))};
  for (int bit = 0; bit < 64; ++bit) {
    const auto one = std::uint64_t{1} << bit;
    EXPECT_TRUE(seen.insert(words(philox::block({one, 0}, 0))).second) << bit;
    EXPECT_TRUE(seen.insert(words(philox::block({0, one}, 0))).second) << bit;
    EXPECT_TRUE(seen.insert(words(philox::block({0, 0}, one))).second) << bit;
  }
}

TEST(Philox, UniformsStayInTheirIntervals) {
  EXPECT_EQ(dist::unit(0U), 0.0F);
  EXPECT_EQ(dist::unit(std::uint64_t{0}), 0.0);
  EXPECT_LT(dist::unit(~0U), 1.0F);
  EXPECT_LT(dist::unit(~std::uint64_t{0}), 1.0);
  EXPECT_GT(dist::open_unit(0U), 0.0F);
  EXPECT_LE(dist::open_unit(~0U), 1.0F);
  EXPECT_GT(dist::open_unit(std::uint64_t{0}), 0.0);
  EXPECT_LE(dist::open_unit(~std::uint64_t{0}), 1.0);
  EXPECT_GT(dist::inner_unit(0U), 0.0);
  EXPECT_LT(dist::inner_unit(~0U), 1.0);
}

// Compares with the C library in double at the first and last words and many between.
TEST(Polynomials, MatchTheCLibrary) {
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto words = philox::block({3, 1}, i);
    const std::uint32_t a = i < 64 ? 1U << (i % 32) : i == 64 ? 0 : i == 65 ? ~0U : words.w[0];
    const auto u = static_cast<double>(dist::open_unit(a));
    EXPECT_NEAR(u, (a + 0.5) / 4294967296.0, u * 1e-7);
    EXPECT_NEAR(dist::log_unit(dist::open_unit(a)), std::log(u), 1e-7 + 1.2e-7 * std::abs(std::log(u)));
    EXPECT_NEAR(dist::square_root(static_cast<float>(u)), std::sqrt(u), 2.5e-7 * std::sqrt(u));
    float sine = 0;
    float cosine = 0;
    dist::sin_cos(a, sine, cosine);
    const double angle = 6.283185307179586 * a / 4294967296.0;
    EXPECT_NEAR(sine, std::sin(angle), 1.5e-7);
    EXPECT_NEAR(cosine, std::cos(angle), 1.5e-7);
    ASSERT_FALSE(::testing::Test::HasFailure()) << a;
  }
  EXPECT_EQ(dist::square_root(0.0F), 0.0F);
  EXPECT_EQ(dist::log_unit(1.0F), 0.0F);
}

TEST(Philox, HighHalfOfAProduct) {
  EXPECT_EQ(dist::multiply_high(~std::uint64_t{0}, ~std::uint64_t{0}), ~std::uint64_t{0} - 1);
  EXPECT_EQ(dist::multiply_high(std::uint64_t{1} << 63, 6), 3U);
}

}  // namespace
}  // namespace dtensor

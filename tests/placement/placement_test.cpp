// Placement values: equality, hash, text and parser.
#include "dtensor/placement.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <rapidcheck.h>

#include <unordered_set>

namespace dtensor {
namespace {

Placement arbitrary_placement() {
  const auto dim = *rc::gen::inRange<std::int64_t>(-3, 4);
  const bool storage = *rc::gen::arbitrary<bool>();
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      return Replicate();
    case 1:
      return Shard(dim).as_storage(storage);
    case 2:
      return StridedShard(dim, *rc::gen::inRange<std::int64_t>(1, 9)).as_storage(storage);
    case 3: {
      const auto sizes = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 9));
      return RaggedShard(dim, sizes.empty() ? std::vector<std::int64_t>{0} : sizes).as_storage(storage);
    }
    case 4:
      return ZigzagShard(dim, *rc::gen::inRange<std::int64_t>(1, 4)).as_storage(storage);
    default:
      return Partial(static_cast<ReduceOp>(*rc::gen::inRange(0, 5)));
  }
}

std::string error_of(const std::string& text, bool list = false) {
  try {
    list ? static_cast<void>(parse_placements(text)) : static_cast<void>(parse_placement(text));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Placement, TextIsAsDocumented) {
  EXPECT_EQ(Replicate().str(), "R");
  EXPECT_EQ(Shard(0).str(), "S(0)");
  EXPECT_EQ(Shard(1).as_storage().str(), "S(1)*");
  EXPECT_EQ(StridedShard(0, 2).str(), "SS(0, 2)");
  EXPECT_EQ(ZigzagShard(1).as_storage().str(), "Z(1)*");
  EXPECT_EQ(ZigzagShard(1, 4).str(), "Z(1, 4)");
  EXPECT_EQ(RaggedShard(0, {3, 0, 5}).str(), "RS(0, 3 0 5)");
  EXPECT_EQ(Partial(ReduceOp::avg).str(), "P(avg)");
  EXPECT_EQ(to_string({Replicate(), Shard(0)}), "[R, S(0)]");
  EXPECT_EQ(to_string(Placements{}), "[]");
}

TEST(Placement, TextRoundTrips) {
  EXPECT_TRUE(rc::check([] {
    Placements placements(*rc::gen::inRange(0, 5));
    for (Placement& p : placements) {
      p = arbitrary_placement();
      RC_ASSERT(parse_placement(p.str()) == p);
    }
    RC_ASSERT(parse_placements(to_string(placements)) == placements);
  }));
}

TEST(Placement, WhitespaceIsIgnored) {
  EXPECT_EQ(parse_placements(" [ SS( 0 ,2 ) * ,P( max ),R ] "),
            (Placements{StridedShard(0, 2).as_storage(), Partial(ReduceOp::max), Replicate()}));
}

TEST(Placement, InvalidTextIsAnError) {
  for (const char* text : {"", "Q", "S", "S(", "S(x)", "S(0", "S(0))", "SS(0)", "SS(0, 0)", "P(mean)", "P", "R*", "r",
                           "S(99999999999)", "RS(0)", "RS(0, )", "RS(0, 1 -1)", "RS(0, 1"}) {
    EXPECT_NE(error_of(text).find("\"" + std::string(text) + "\""), std::string::npos) << text;
  }
  const char* grammar = "Z(dim), Z(dim, pieces) or P(sum|avg|max|min|product), shards with an optional *;";
  EXPECT_NE(error_of("Z(0, 0)").find(grammar), std::string::npos);
  for (const char* text : {"R", "[R", "[R,]", "[R] R", "[R S(0)]"}) {
    EXPECT_NE(error_of(text, true).find("\"" + std::string(text) + "\""), std::string::npos) << text;
  }
}

TEST(Placement, EqualIffTextsAreEqual) {
  EXPECT_TRUE(rc::check([] {
    const Placement a = arbitrary_placement();
    const Placement b = arbitrary_placement();
    RC_ASSERT((a == b) == (a.str() == b.str()));
    if (a == b) RC_ASSERT(a.hash() == b.hash());
  }));
}

TEST(Placement, HashesDiffer) {
  std::unordered_set<std::size_t> hashes;
  std::size_t count = 0;
  for (std::int64_t dim = 0; dim < 32; ++dim) {
    for (std::int64_t sf = 1; sf < 32; ++sf, count += 2) {
      hashes.insert(StridedShard(dim, sf).hash());
      hashes.insert(ZigzagShard(dim, sf).hash());
    }
  }
  EXPECT_EQ(hashes.size(), count);
}

TEST(Placement, ListsOfRaggedShardsAreFreed) {
  constexpr std::int64_t kLists = 10000;
  const auto use = [](std::int64_t seed) {
    const Placements one{RaggedShard(0, {seed, seed + 1, 7}), Replicate()};
    const Placements copies{one[0].as_storage(), one[0].with_dim(1), parse_placement(one[0].str())};
    EXPECT_EQ(copies[2], one[0]);
    EXPECT_NE(copies[1], one[0]);
  };
  use(0);
  const auto before = mallinfo2().uordblks;
  for (std::int64_t i = 0; i < kLists; ++i) use(i);
  EXPECT_LT(static_cast<std::int64_t>(mallinfo2().uordblks - before), kLists);  // less than a byte for each list
}

TEST(Placement, StorageIsForShardsOnly) {
  EXPECT_EQ(Replicate().as_storage(), Replicate());
  EXPECT_EQ(Partial().as_storage(), Partial());
  EXPECT_NE(Shard(0).as_storage(), Shard(0));
  EXPECT_EQ(Shard(0).as_storage().as_storage(false), Shard(0));
  EXPECT_EQ(Shard(0).as_storage().with_dim(2), Shard(2).as_storage());
}

TEST(Placement, RefusesInvalidArguments) {
  EXPECT_THROW(StridedShard(0, 0), c10::Error);
  EXPECT_THROW(ZigzagShard(0, 0), c10::Error);
  EXPECT_THROW(RaggedShard(0, {}), c10::Error);
  EXPECT_THROW(RaggedShard(0, {2, -1}), c10::Error);
  EXPECT_THROW(BlockShard(0, 8, 0, 2), c10::Error);
  EXPECT_THROW(Replicate().with_dim(1), c10::Error);
  EXPECT_THROW(Shard(std::int64_t{1} << 40), c10::Error);
}

}  // namespace
}  // namespace dtensor
